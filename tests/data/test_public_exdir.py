"""FedGMH's own draw: facts about it that were measured with the authors' generator, and that it divides."""

from __future__ import annotations

import numpy as np
import pytest

from headwise.data.partition.base import count_labels
from headwise.data.partition.public_exdir import PublicExDir
from headwise.errors import DataError

CIFAR = np.repeat(np.arange(10), 6_000)  # the sizes of CIFAR-10's classes: the draw depends on nothing else


def counts(scheme: PublicExDir, labels=CIFAR, clients: int = 100):
    groups = scheme.divide(labels, clients, np.random.default_rng(0), None)
    assert len(np.unique(np.concatenate(groups))) == sum(map(len, groups))
    return count_labels(labels, groups, int(labels.max()) + 1)


def test_the_floor_and_the_clients_below_one_batch_are_those_of_the_authors_draw() -> None:
    drawn = counts(PublicExDir())
    assert drawn.sum() == len(CIFAR)
    assert round(drawn.max(1).sum() / drawn.sum() * 100, 2) == 89.95
    assert (drawn.sum(1) * 3 // 4 < 100).sum() == 18
    assert (drawn > 0).sum(1).max() == 2
    assert drawn.sum(1).min() >= 10


def test_the_draw_is_the_seeds_and_not_the_runs() -> None:
    draws = [
        PublicExDir(numpy_seed=s).divide(CIFAR, 100, np.random.default_rng(r), None)
        for s, r in ((1, 0), (1, 9), (2, 0))
    ]
    same, other = ([np.array_equal(a, b) for a, b in zip(draws[0], d, strict=True)] for d in draws[1:])
    assert all(same) and not any(other)


def test_a_thinned_draw_keeps_the_clients() -> None:
    whole = counts(PublicExDir())
    kept = counts(PublicExDir(keep=0.25))
    assert np.abs(kept.sum(1) - whole.sum(1) / 4).max() <= 0.5
    assert not (kept[whole == 0]).any()


def test_every_owner_full_gives_a_class_to_its_last_owner() -> None:
    labels = np.repeat([0, 1], [900, 20])  # all four clients are above the mean once the first class is dealt or own it
    drawn = counts(PublicExDir(2, 100.0), labels, 4)
    assert drawn.sum() == 920


def test_a_draw_that_cannot_be_is_one_sentence() -> None:
    with pytest.raises(DataError, match="numpy_seed is 1, but none of"):
        PublicExDir(1, 0.5).divide(np.repeat(np.arange(2), 5), 4, np.random.default_rng(0), None)
