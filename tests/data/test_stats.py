"""Fingerprints, histograms and majority-class floors of partitions."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

from headwise.data.dataset import Dataset
from headwise.data.partition.base import count_labels
from headwise.data.partition.dirichlet import Dirichlet
from headwise.data.partition.exdir import ExDir
from headwise.data.partition.iid import IID
from headwise.data.partition.pathological import Pathological
from headwise.data.splits import (
    Floor,
    Parts,
    divide_all,
    hash_partition,
    measure_floor,
    parse_split,
    summarize,
)
from headwise.settings.fields import dump

LABELS = np.array([0, 1, 1, 2, 0, 2])


def indices(*values: int):
    return np.array(values, dtype=np.int64)


PARTS = [Parts(indices(0, 1), indices(), indices(2)), Parts(indices(3), indices(5), indices(4))]


def test_hash_is_the_documented_one():
    """Length, indices and labels of each part, as little-endian 64-bit integers."""
    numbers = [2, 0, 1, 0, 1, 0, 1, 2, 1, 1, 3, 2, 1, 5, 2, 1, 4, 0]
    expected = hashlib.sha256(b"".join(n.to_bytes(8, "little") for n in numbers)).hexdigest()
    assert hash_partition(LABELS, PARTS) == expected
    assert hash_partition(LABELS.astype(">i4"), PARTS) == expected


def test_hash_sees_clients_parts_and_labels():
    moved = [Parts(indices(0), indices(1), indices(2)), PARTS[1]]
    hashes = {
        hash_partition(LABELS, PARTS),
        hash_partition(LABELS, PARTS[::-1]),
        hash_partition(LABELS, moved),
        hash_partition(LABELS[::-1], PARTS),
    }
    assert len(hashes) == 4


def test_histograms():
    groups = [indices(0, 1, 2), indices(), indices(3)]
    assert count_labels(LABELS, groups, 4).tolist() == [[1, 2, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0]]


def test_majority_floor_by_hand():
    train = np.array([[3, 1], [0, 2], [5, 0]])
    test = np.array([[1, 3], [0, 2], [0, 0]])
    assert measure_floor(train, test) == Floor(3 / 6, (1 / 4 + 1) / 2)
    assert measure_floor(train, test * 0) == Floor(None, None)


def test_weighted_and_mean_floor_agree_on_equal_test_parts():
    labels = np.arange(2_000) % 10
    dataset = Dataset(np.zeros(2_000), labels, tuple("0123456789"))
    floor = summarize(labels, divide_all(dataset, IID(), parse_split("75/25"), 20, np.random.default_rng(0)), 10).floor
    assert floor.weighted == pytest.approx(floor.mean)


def test_summary_goes_to_json():
    summary = summarize(LABELS, PARTS, 3)
    assert json.loads(json.dumps(dump(summary), allow_nan=False)) == {
        "clients": 2,
        "train": 3,
        "val": 1,
        "test": 2,
        "sizes": {"min": 3.0, "median": 3.0, "max": 3.0},
        "classes": {"min": 2.0, "median": 2.0, "max": 2.0},
        "floor": {"weighted": 0.0, "mean": 0.0},
        "hash": hash_partition(LABELS, PARTS),
    }


@pytest.mark.parametrize(
    ("partition", "clients", "classes", "expected"),
    [
        (ExDir(2, 0.5), 100, 10, 0.90),
        (ExDir(2, 0.5, balance=False), 100, 10, 0.83),
        (ExDir(2, 5.0), 100, 10, 0.655),
        (ExDir(5, 0.5), 100, 100, 0.575),
        (ExDir(5, 5.0), 100, 100, 0.375),
        (Dirichlet(0.1), 20, 10, 0.67),
        (Dirichlet(0.1), 20, 100, 0.15),
        (Pathological(2), 20, 10, 0.61),
        (Pathological(10), 20, 100, 0.13),
    ],
    ids=repr,
)
def test_floors_of_the_published_settings(partition, clients, classes, expected):
    labels = np.arange(70_000) % classes
    dataset = Dataset(np.zeros(70_000), labels, tuple(map(str, range(classes))))
    runs = [divide_all(dataset, partition, parse_split("75/25"), clients, np.random.default_rng(s)) for s in range(6)]
    floors = [summarize(labels, parts, classes).floor.weighted for parts in runs]
    assert np.mean(np.array(floors, dtype=float)) == pytest.approx(expected, abs=0.06 if expected > 0.2 else 0.02)
