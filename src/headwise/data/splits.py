"""Divides each client's samples into training, validation and test, and summarizes who has what.

75/25           training and test
8:1:1           training, validation and test
official        tests on the public test set, divided like the public training set
official:4:1    the same, with validation samples taken from the training set
own             as the user's data.toml says: the part of each sample, or a ratio
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, DataError
from ..tasks.registry import kind_of
from .dataset import Dataset
from .partition.base import Counts, Indices, Partition, apportion, count_labels, deal
from .partition.natural import Natural

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


def parse_split(text: str) -> Split:
    """Parse a split as a user writes it.

    >>> parse_split("8:1:1")
    Split(train=8, val=1, test=1, official=False)
    """
    if text == OWN:
        return Split(1, 0, 0, own=True)
    number = r"([1-9]\d{0,8})"
    if match := re.fullmatch(rf"official(?::{number}:{number})?", text, re.ASCII):
        return Split(int(match[1] or 1), int(match[2] or 0), 0, official=True)
    if match := re.fullmatch(rf"{number}(?:/|:{number}:){number}", text, re.ASCII):
        return Split(int(match[1]), int(match[2] or 0), int(match[3]))
    raise ConfigError(f"split is {text!r}, but must be like {', '.join(EXAMPLES[:-1])} or {EXAMPLES[-1]}.")


def divide_all(
    dataset: Dataset, partition: Partition, split: Split, clients: int, rng: np.random.Generator, *, cover: bool = False
) -> list[Parts]:
    """Divide all samples among clients, and each client's samples into parts; `cover`: see `cover_classes`."""
    if split.own and dataset.part is None:
        return divide_all(dataset, partition, parse_split(dataset.split), clients, rng, cover=True)
    if split.official:
        groups = partition_official(dataset, partition, clients, rng)
    else:
        groups = partition.divide(dataset.strata.labels, clients, rng, dataset.owner)
    if split.own and dataset.part is not None:
        return [_divide_by_part(indices, dataset.part) for indices in groups]
    # a natural client's parts depend only on its own samples, so a site can compute them without the others'
    rngs = rng.spawn(clients) if isinstance(partition, Natural) else [rng] * clients
    labels = dataset.y if cover and kind_of(dataset.task).one_class else None
    return [divide(indices, split, r, dataset.official_test, labels) for indices, r in zip(groups, rngs, strict=True)]


def _divide_by_part(indices: Indices, part: NDArray[np.int8]) -> Parts:
    """By the part that the data gives each sample."""
    return Parts(*(indices[part[indices] == k] for k in range(3)))


def redraw(dataset: Dataset, parts: list[Parts], seed: int) -> list[Parts]:
    """Divide each client's training and validation samples anew; test samples stay, and so do parts that are given."""
    if dataset.part is not None:
        return parts
    labels = dataset.y if kind_of(dataset.task).one_class else None
    return [_redraw(part, labels, seed, client) for client, part in enumerate(parts)]


def _redraw(part: Parts, labels: NDArray[np.int64] | None, seed: int, client: int) -> Parts:
    if not len(part.val):
        return part
    rng = _make_rng(seed, client)
    pool = np.sort(np.concatenate([part.train, part.val]))
    new = divide(pool, Split(len(part.train), len(part.val), 0), rng, None, labels)
    return Parts(new.train, new.val, part.test)


def _make_rng(seed: int, client: int) -> np.random.Generator:
    """What `spawn` would give this client."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(client,)))


def hold_out(parts: list[Parts], share: float, seed: int) -> list[Parts]:
    """Set a share of the training samples aside for validation, at each client that has no validation samples."""
    return [_hold_out(part, share, seed, client) for client, part in enumerate(parts)] if share else parts


def _hold_out(part: Parts, share: float, seed: int, client: int) -> Parts:
    count = min(max(1, round(share * len(part.train))), len(part.train) - 1)
    if len(part.val) or count < 1:
        return part
    order = _make_rng(seed, client).permutation(part.train)
    return Parts(np.sort(order[count:]), np.sort(order[:count]), part.test)


def divide_own(dataset: Dataset, own: Mapping[int, int], split: Split, clients: int, seed: int) -> list[Parts]:
    """The parts of the natural clients at one site, whose samples follow each other; other clients' parts are empty.

    `own` maps each client to its number of samples. The result equals `divide_all` on everybody's samples.
    """
    labels = dataset.y if split.own and kind_of(dataset.task).one_class else None
    if split.own and dataset.part is None:
        split = parse_split(dataset.split)
    at = 0
    parts = [Parts(NOTHING, NOTHING, NOTHING)] * clients
    for client, n in own.items():
        rng = _make_rng(seed, client)
        indices = np.arange(at, at + n)
        if split.own and dataset.part is not None:
            parts[client] = _divide_by_part(indices, dataset.part)
        else:
            parts[client] = divide(indices, split, rng, dataset.official_test, labels)
        at += n
    return parts


def partition_official(
    dataset: Dataset, partition: Partition, clients: int, rng: np.random.Generator
) -> Sequence[Indices]:
    """Divide the public training set by the partition, then the public test set with the same class shares."""
    y = dataset.strata.labels
    owner = dataset.owner
    public_test = _require_official_test(dataset.official_test)
    if isinstance(partition, Natural):  # test samples have owners too
        return partition.divide(y, clients, rng, owner)
    train = np.flatnonzero(~public_test)
    test = np.flatnonzero(public_test)
    parts = partition.divide(y[train], clients, rng, None if owner is None else owner[train])
    weights = count_labels(y[train], parts, int(y.max()) + 1)
    weights = np.where(weights.any(0), weights, weights.sum(1, keepdims=True))  # untrained classes: by size
    totals = np.bincount(y[test], minlength=weights.shape[1])
    tests = deal(y[test], apportion(totals, weights, rng), rng)
    return [np.concatenate([train[a], test[b]]) for a, b in zip(parts, tests, strict=True)]


def divide(
    indices: Indices,
    split: Split,
    rng: np.random.Generator,
    official_test: NDArray[np.bool_] | None = None,
    labels: NDArray[np.int64] | None = None,
) -> Parts:
    """Divide one client's samples at random; given all samples' `labels`, classes are covered, see `cover_classes`."""
    order = rng.permutation(indices)
    public = indices[:0]
    if split.official:
        tests = _require_official_test(official_test)[order]
        if tests.all():
            raise DataError("split is 'official', but a client has only public test samples: choose one like 75/25.")
        public = order[tests]
        order = order[~tests]
    a, b, c = size_parts(len(order), split)
    if labels is not None and not split.official:
        order = cover_classes(order, labels, (a, b, c))
    val = order[a : a + b] if b else NOTHING
    test = order[a + b :]
    return Parts(order[:a], val, np.concatenate([test, public]) if split.official else test)


def cover_classes(order: Indices, labels: NDArray[np.int64], sizes: tuple[int, int, int]) -> Indices:
    """Exchange as few samples as needed, so that a class with two samples or more is in training and in test.

    `sizes` are those of training, validation and test in `order`. A sample is only exchanged for one whose class
    stays in its part, so a part with fewer samples than classes lacks some.
    """
    order = order.copy()
    part = np.repeat(np.arange(3), sizes)
    mine = labels[order]
    classes, first = np.unique(mine, return_index=True)
    for into in (0, 2):
        for k in classes[np.argsort(first)]:
            own = mine == k
            if not sizes[into] or own.sum() < 2 or (own & (part == into)).any():
                continue
            other = next(p for p in (1, 2 - into) if (own & (part == p)).any())  # validation can spare its only one
            given = np.flatnonzero(own & (part == other))[-1]
            names, counts = np.unique(mine[part == into], return_counts=True)
            if counts.max() < 2:
                continue
            taken = np.flatnonzero((mine == names[counts.argmax()]) & (part == into))[-1]
            order[[given, taken]] = order[[taken, given]]
            mine[[given, taken]] = mine[[taken, given]]
    return order


@lru_cache(maxsize=4096)
def size_parts(n: int, split: Split) -> tuple[int, ...]:
    """Sizes rounded down, the remainder to the last part; one sample trains, a second one tests."""
    weights = (split.train, split.val, split.test)
    sizes = [w * n // sum(weights) for w in weights]
    sizes[max(i for i, w in enumerate(weights) if w)] += n - sum(sizes)
    for part in (0, 2, 1):  # a requested part is only empty if no other part has two samples
        if weights[part] and not sizes[part] and max(sizes) > (0 if part == 0 else 1):
            sizes[sizes.index(max(sizes))] -= 1
            sizes[part] = 1
    return tuple(sizes)


def _require_official_test(official_test: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
    if official_test is None or not official_test.any():
        raise DataError("split is 'official', but this data set has no public test set: choose one like 75/25.")
    return official_test


@dataclass(frozen=True)
class Floor:
    """The accuracy of predicting each client's most frequent training class; None without test samples."""

    weighted: float | None
    """over all test samples"""
    mean: float | None
    """mean over the clients that have test samples"""


@dataclass(frozen=True)
class Spread:
    """How a number varies over the clients."""

    min: float
    median: float
    max: float


@dataclass(frozen=True)
class Summary:
    """A run's partition, as its manifest describes it."""

    clients: int
    train: int
    """samples of all clients"""
    val: int
    test: int
    sizes: Spread
    """samples per client, over all parts"""
    classes: Spread
    """classes per client, over all parts"""
    floor: Floor
    """what a trained personal model must beat"""
    hash: str


def summarize(labels: NDArray[np.int64], parts: Sequence[Parts], classes: int) -> Summary:
    train, val, test = (
        count_labels(labels, groups, classes)
        for groups in ([p.train for p in parts], [p.val for p in parts], [p.test for p in parts])
    )
    every = train + val + test
    return Summary(
        len(parts),
        int(train.sum()),
        int(val.sum()),
        int(test.sum()),
        summarize_spread(every.sum(1)),
        summarize_spread((every > 0).sum(1)),
        measure_floor(train, test),
        hash_partition(labels, parts),
    )


def measure_floor(train: Counts, test: Counts) -> Floor:
    """The floor, from how often each client has each class; a model below it has learned nothing about its client."""
    sizes = test.sum(1)
    hits = np.take_along_axis(test, train.argmax(1, keepdims=True), axis=1)[:, 0]
    if not sizes.any():
        return Floor(None, None)
    tested = sizes > 0
    return Floor(float(hits.sum() / sizes.sum()), float((hits[tested] / sizes[tested]).mean()))


def hash_partition(y: NDArray[Any], parts: Sequence[Parts]) -> str:
    """SHA-256 of all parts' lengths, indices and targets, client by client; the same on every machine."""
    digest = hashlib.sha256()
    y = y.astype("<f4" if y.dtype.kind == "f" else "<i8", copy=False)
    for part in (i for p in parts for i in (p.train, p.val, p.test)):
        digest.update(len(part).to_bytes(8, "little") + part.astype("<i8", copy=False).tobytes() + y[part].tobytes())
    return digest.hexdigest()


def summarize_spread(values: NDArray[np.int64]) -> Spread:
    return Spread(float(values.min()), float(np.median(values)), float(values.max()))
