"""Parts of a client's samples: exact sizes, nothing lost, the public test set by the training set's law."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.data.dataset import Dataset
from headwise.data.partition.base import apportion, count_labels
from headwise.data.partition.dirichlet import Dirichlet
from headwise.data.partition.exdir import ExDir
from headwise.data.partition.iid import IID
from headwise.data.partition.natural import Natural
from headwise.data.partition.pathological import Pathological
from headwise.data.partition.shamsian import Shamsian
from headwise.data.sources.synthetic import Synthetic
from headwise.data.splits import (
    EXAMPLES,
    NOTHING,
    Floor,
    Parts,
    Split,
    divide,
    divide_all,
    divide_own,
    hash_partition,
    hold_out,
    measure_floor,
    parse_split,
    redraw,
    size_parts,
    summarize,
)
from headwise.errors import ConfigError, DataError
from headwise.settings.fields import dump

OFFICIAL = parse_split("official")


def rng_of(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def data(n: int = 7_000, classes: int = 10, **more) -> Dataset:
    names = tuple(map(str, range(classes)))
    return Dataset(np.zeros((n, 1), dtype=np.float32), np.arange(n) % classes, names, **more)


def public(n: int = 7_000, classes: int = 10) -> Dataset:
    return data(n, classes, official_test=np.arange(n) >= n * 6 // 7)


def list_samples(parts) -> list[int]:
    return sorted(int(i) for p in parts for part in (p.train, p.val, p.test) for i in part)


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("75/25", Split(75, 0, 25)),
        ("80/20", Split(80, 0, 20)),
        ("8:1:1", Split(8, 1, 1)),
        ("7:1:2", Split(7, 1, 2)),
        ("official", Split(1, 0, 0, official=True)),
        ("official:4:1", Split(4, 1, 0, official=True)),
    ],
)
def test_parse(text, split):
    assert parse_split(text) == split


@pytest.mark.parametrize(
    "text", ["", "75", "75/0", "0/1", "8:1", "8:1:1:1", "a/b", "75/25\n", "-1/2", "offical", "٣/٤", "1" * 99 + "/1"]
)
def test_bad_text_is_one_sentence(text):
    with pytest.raises(ConfigError, match=r"but must be like 75/25, 8:1:1, official or official:4:1\."):
        parse_split(text)


@pytest.mark.parametrize(
    ("text", "n", "expected"),
    [
        ("75/25", 1, [1, 0, 0]),
        ("75/25", 2, [1, 0, 1]),
        ("75/25", 3, [2, 0, 1]),
        ("75/25", 7, [5, 0, 2]),
        ("75/25", 100, [75, 0, 25]),
        ("8:1:1", 1, [1, 0, 0]),
        ("8:1:1", 2, [1, 0, 1]),
        ("8:1:1", 3, [1, 1, 1]),
        ("8:1:1", 5, [3, 1, 1]),
        ("8:1:1", 9, [6, 1, 2]),
        ("8:1:1", 19, [15, 1, 3]),
        ("8:1:1", 600, [480, 60, 60]),
        ("1:8:1", 3, [1, 1, 1]),
        ("1:1:8", 2, [1, 0, 1]),
        ("official", 5, [5, 0, 0]),
        ("official:4:1", 1, [1, 0, 0]),
        ("official:4:1", 10, [8, 2, 0]),
    ],
)
def test_sizes(text, n, expected):
    assert list(size_parts(n, parse_split(text))) == expected


@settings(deadline=None)
@given(st.integers(1, 10**6), st.tuples(st.integers(1, 99), st.integers(0, 99), st.integers(1, 99)))
def test_sizes_add_up_and_leave_no_part_empty(n, weights):
    sizes = size_parts(n, Split(*weights))
    assert sum(sizes) == n
    assert min(sizes) >= 0
    assert sizes[0] > 0
    assert sizes[2] > 0 or n < 2
    assert sizes[1] > 0 or n < 3 or not weights[1]
    if min(w * n // sum(weights) for w in weights if w):
        assert list(sizes[:2]) == [w * n // sum(weights) for w in weights[:2]]


def test_divide_is_random_pure_and_not_stratified():
    indices = np.arange(100, 200)
    first, again, other = (divide(indices, parse_split("75/25"), rng_of(s)) for s in (1, 1, 2))
    assert np.array_equal(first.train, again.train)
    assert not np.array_equal(first.train, other.train)
    assert list_samples([first]) == list(range(100, 200))
    assert np.array_equal(indices, np.arange(100, 200))
    assert len(first.val) == 0


@pytest.mark.parametrize("text", EXAMPLES)
@pytest.mark.parametrize("partition", [IID(), Dirichlet(), ExDir(), Shamsian()], ids=repr)
def test_nothing_lost_and_training_never_empty(text, partition):
    parts = divide_all(public(), partition, parse_split(text), 20, rng_of())
    assert list_samples(parts) == list(range(7_000))
    assert min(len(p.train) for p in parts) > 0
    assert bool(sum(len(p.val) for p in parts)) == (text in ("8:1:1", "official:4:1"))


def test_tiny_clients():
    parts = divide_all(data(30), IID(), parse_split("8:1:1"), 30, rng_of())
    assert [(len(p.train), len(p.val), len(p.test)) for p in parts] == [(1, 0, 0)] * 30


@pytest.mark.parametrize("partition", [Dirichlet(), ExDir(), Shamsian()], ids=repr)
def test_official_test_samples_follow_the_training_shares(partition):
    dataset = public(70_000)
    parts = divide_all(dataset, partition, OFFICIAL, 20, rng_of())
    train = count_labels(dataset.y, [p.train for p in parts], 10)
    test = count_labels(dataset.y, [p.test for p in parts], 10)
    assert dataset.official_test is not None
    assert not dataset.official_test[np.concatenate([p.train for p in parts])].any()
    assert dataset.official_test[np.concatenate([p.test for p in parts])].all()
    assert np.abs(test - train / 6).max() < 1


def test_official_class_without_training_samples_goes_by_size():
    dataset = Dataset(np.zeros(90), np.repeat([0, 1], [60, 30]), ("a", "b"), official_test=np.arange(90) >= 60)
    parts = divide_all(dataset, IID(), OFFICIAL, 3, rng_of())
    assert [(len(p.train), len(p.test)) for p in parts] == [(20, 10)] * 3


def test_official_natural_clients_keep_their_own_test_samples():
    owner = np.arange(7_000) % 5
    dataset = data(owner=owner, official_test=np.arange(7_000) >= 6_000)
    for client, p in enumerate(divide_all(dataset, Natural(), OFFICIAL, 5, rng_of())):
        assert set(owner[np.concatenate([p.train, p.test])]) == {client}
        assert (len(p.train), len(p.test)) == (1_200, 200)


def test_official_errors():
    for mask in (None, np.zeros(7_000, dtype=bool)):
        with pytest.raises(DataError, match=r"this data set has no public test set: choose one like 75/25\."):
            divide_all(data(official_test=mask), IID(), OFFICIAL, 5, rng_of())
    dataset = data(4, 2, owner=np.array([0, 0, 1, 1]), official_test=np.array([False, True, True, True]))
    with pytest.raises(DataError, match=r"a client has only public test samples"):
        divide_all(dataset, Natural(), OFFICIAL, 2, rng_of())


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 10**6))
def test_apportion_is_within_one_of_proportional(clients, classes, seed):
    rng = rng_of(seed)
    weights = rng.integers(0, 50, (clients, classes))
    weights[0] += 1
    totals = rng.integers(0, 200, classes)
    given_out = apportion(totals, weights, rng)
    assert np.array_equal(given_out.sum(0), totals)
    assert (np.abs(given_out - weights / weights.sum(0) * totals) < 1).all()
    assert not given_out[weights == 0].any()


def test_apportion_breaks_ties_at_random():
    winners = {int(apportion(np.array([1]), np.ones((50, 1), dtype=np.int64), rng_of(s)).argmax()) for s in range(20)}
    assert len(winners) > 5


def test_ten_thousand_clients_with_the_official_test_set():
    parts = divide_all(public(700_000, 100), ExDir(5), parse_split("official:4:1"), 10_000, rng_of())
    assert sum(len(p.test) for p in parts) == 100_000


def test_natural_clients_find_their_parts_alone():
    """A hospital that has only its own samples divides them as a simulation of all hospitals does."""
    whole = Synthetic(samples=97, sites=4).load(Path())
    rng = np.random.default_rng(5)
    together = divide_all(whole, Natural(), parse_split("8:1:1"), 4, rng)
    for k in range(4):
        own = Synthetic(samples=97, sites=4, only=k).load(Path())
        first = int((whole.owner < k).sum())
        np.testing.assert_array_equal(own.x, whole.x[whole.owner == k])
        alone = divide_own(own, {k: len(own.y)}, parse_split("8:1:1"), 4, 5)
        for part in ("train", "val", "test"):
            np.testing.assert_array_equal(getattr(alone[k], part) + first, getattr(together[k], part))
        assert [len(p.train) for j, p in enumerate(alone) if j != k] == [0, 0, 0]


def test_validation_samples_are_set_aside_where_there_are_none() -> None:
    full = Parts(np.arange(10), np.arange(10, 12), np.arange(12, 14))
    parts = [full, Parts(np.arange(20, 30), NOTHING, NOTHING), Parts(np.arange(1), NOTHING, NOTHING)]
    held = hold_out(parts, 0.25, seed=3)
    assert held[0] is full
    assert (len(held[1].train), len(held[1].val)) == (8, 2)
    assert {*held[1].train, *held[1].val} == {*range(20, 30)}
    assert (len(held[2].train), len(held[2].val)) == (1, 0)
    assert hold_out(parts, 0.0, seed=3) is parts
    alone = hold_out([Parts(NOTHING, NOTHING, NOTHING), parts[1]], 0.25, seed=3)  # as a site sees it
    assert (alone[1].val == held[1].val).all()


def test_only_training_and_validation_samples_are_drawn_anew() -> None:
    dataset = data(400, owner=np.arange(400) % 4, owners=("a", "b", "c", "d"))
    before = divide_all(dataset, Natural(), parse_split("6:2:2"), 4, rng_of())
    after = redraw(dataset, before, seed=3)
    assert list_samples(after) == list_samples(before)
    for old, new in zip(before, after, strict=True):
        assert (len(new.train), len(new.val)) == (len(old.train), len(old.val))
        assert new.test.tolist() == old.test.tolist()
        assert sorted(new.val.tolist()) != sorted(old.val.tolist())
    assert [p.val.tolist() for p in redraw(dataset, before, seed=3)] == [p.val.tolist() for p in after]


def test_parts_that_the_data_gives_are_not_drawn_anew() -> None:
    dataset = data(40, owner=np.zeros(40, np.int64), owners=("a",), part=(np.arange(40) % 3).astype(np.int8))
    before = divide_all(dataset, Natural(), parse_split("own"), 1, rng_of())
    assert redraw(dataset, before, seed=3) is before


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
