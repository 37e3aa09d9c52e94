"""Divides each client's samples into training, validation and test.

75/25           training and test
8:1:1           training, validation and test
official        tests on the public test set, divided like the public training set
official:4:1    the same, with validation samples taken from the training set
own             as the user's data.toml says: the part of each sample, or a ratio
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, DataError
from .dataset import Dataset
from .partition.base import Indices, Partition
from .partition.natural import Natural
from .partition.shares import apportion, deal, histograms

EXAMPLES = ("75/25", "8:1:1", "official", "official:4:1")
OWN = "own"
NOTHING: Indices = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)  # there may be a million
class Parts:
    """The indices of one client's samples; only the training part is never empty."""

    train: Indices
    val: Indices
    test: Indices


@dataclass(frozen=True)
class Split:
    """The ratio of training to validation to test samples, in integers of any scale."""

    train: int
    val: int
    test: int
    official: bool = False
    """test on the public test set; the ratio then divides the public training set"""
    own: bool = False
    """as the data.toml says"""


def parse(text: str) -> Split:
    """Parse a split as a user writes it.

    >>> parse("8:1:1")
    Split(train=8, val=1, test=1, official=False)
    """
    if text == OWN:
        return Split(1, 0, 0, own=True)
    number = r"([1-9]\d{0,8})"
    if found := re.fullmatch(rf"official(?::{number}:{number})?", text, re.ASCII):
        return Split(int(found[1] or 1), int(found[2] or 0), 0, official=True)
    if found := re.fullmatch(rf"{number}(?:/|:{number}:){number}", text, re.ASCII):
        return Split(int(found[1]), int(found[2] or 0), int(found[3]))
    raise ConfigError(f"split is {text!r}, but must be like {', '.join(EXAMPLES[:-1])} or {EXAMPLES[-1]}.")


def divide_all(
    dataset: Dataset, partition: Partition, split: Split, clients: int, rng: np.random.Generator
) -> list[Parts]:
    """Divide all samples among clients, and each client's samples into parts."""
    if split.own:
        return _divide_by_owner(dataset, partition, clients, rng)
    if split.official:
        groups = partition_official(dataset, partition, clients, rng)
    else:
        groups = partition.divide(dataset.strata.labels, clients, rng, dataset.owner)
    # a natural client's parts depend only on its own samples, so a site can compute them without the others'
    rngs = rng.spawn(clients) if isinstance(partition, Natural) else [rng] * clients
    return [divide(indices, split, r, dataset.official_test) for indices, r in zip(groups, rngs, strict=True)]


def _divide_by_owner(dataset: Dataset, partition: Partition, clients: int, rng: np.random.Generator) -> list[Parts]:
    """As the data.toml says: by each sample's part, else by ratio."""
    if (part := dataset.part) is None:
        return divide_all(dataset, partition, parse(dataset.split), clients, rng)
    groups = partition.divide(dataset.strata.labels, clients, rng, dataset.owner)
    return [Parts(*(indices[part[indices] == k] for k in range(3))) for indices in groups]


def divide_own(dataset: Dataset, own: Mapping[int, int], split: Split, clients: int, seed: int) -> list[Parts]:
    """The parts of the natural clients at one site, whose samples follow each other; other clients' parts are empty.

    `own` maps each client to its number of samples. The result equals `divide_all` on everybody's samples.
    """
    at = 0
    if split.own and dataset.part is None:
        split = parse(dataset.split)
    parts = [Parts(NOTHING, NOTHING, NOTHING)] * clients
    for client, n in own.items():
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(client,)))  # as `spawn` would give
        indices = np.arange(at, at + n)
        if split.own and dataset.part is not None:
            parts[client] = Parts(*(indices[dataset.part[indices] == k] for k in range(3)))
        else:
            parts[client] = divide(indices, split, rng, dataset.official_test)
        at += n
    return parts


def partition_official(
    dataset: Dataset, partition: Partition, clients: int, rng: np.random.Generator
) -> Sequence[Indices]:
    """Divide the public training set by the partition, then the public test set with the same class shares."""
    y, owner, public_test = dataset.strata.labels, dataset.owner, _known(dataset.official_test)
    if isinstance(partition, Natural):  # test samples have owners too
        return partition.divide(y, clients, rng, owner)
    seen, unseen = np.flatnonzero(~public_test), np.flatnonzero(public_test)
    parts = partition.divide(y[seen], clients, rng, None if owner is None else owner[seen])
    weights = histograms(y[seen], parts, int(y.max()) + 1)
    weights = np.where(weights.any(0), weights, weights.sum(1, keepdims=True))  # untrained classes: by size
    totals = np.bincount(y[unseen], minlength=weights.shape[1])
    tests = deal(y[unseen], apportion(totals, weights, rng), rng)
    return [np.concatenate([seen[a], unseen[b]]) for a, b in zip(parts, tests, strict=True)]


def divide(
    indices: Indices, split: Split, rng: np.random.Generator, official_test: NDArray[np.bool_] | None = None
) -> Parts:
    """Divide one client's samples at random, not stratified."""
    order, public = rng.permutation(indices), indices[:0]
    if split.official:
        tests = _known(official_test)[order]
        if tests.all():
            raise DataError("split is 'official', but a client has only public test samples: choose one like 75/25.")
        order, public = order[~tests], order[tests]
    a, b, _ = sizes(len(order), split)
    test, val = order[a + b :], order[a : a + b] if b else NOTHING
    return Parts(order[:a], val, np.concatenate([test, public]) if split.official else test)


@lru_cache(maxsize=4096)
def sizes(n: int, split: Split) -> tuple[int, ...]:
    """Sizes rounded down, the remainder to the last part; one sample trains, a second one tests."""
    weights = (split.train, split.val, split.test)
    found = [w * n // sum(weights) for w in weights]
    found[max(i for i, w in enumerate(weights) if w)] += n - sum(found)
    for part in (0, 2, 1):  # a requested part is only empty if no other part has two samples
        if weights[part] and not found[part] and max(found) > (0 if part == 0 else 1):
            found[found.index(max(found))] -= 1
            found[part] = 1
    return tuple(found)


def _known(official_test: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
    if official_test is None or not official_test.any():
        raise DataError("split is 'official', but this data set has no public test set: choose one like 75/25.")
    return official_test
