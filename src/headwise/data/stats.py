"""Statistics of a partition: its hash, its sizes, and the accuracy of guessing the majority class."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .partition.base import Indices
from .partition.shares import Counts, histograms
from .splits import Parts

__all__ = ["Floor", "Spread", "Summary", "histograms", "majority_floor", "partition_hash", "summarize"]


TOGETHER = 30_000
"""parts of clients hashed in one pass"""


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
    """What a run's manifest says about its partition."""

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
        histograms(labels, groups, classes)
        for groups in ([p.train for p in parts], [p.val for p in parts], [p.test for p in parts])
    )
    every = train + val + test
    return Summary(
        len(parts),
        int(train.sum()),
        int(val.sum()),
        int(test.sum()),
        _spread(every.sum(1)),
        _spread((every > 0).sum(1)),
        majority_floor(train, test),
        partition_hash(labels, parts),
    )


def majority_floor(train: Counts, test: Counts) -> Floor:
    """From the clients' histograms. A model below this floor has learned nothing about its client."""
    sizes = test.sum(1)
    hits = np.take_along_axis(test, train.argmax(1, keepdims=True), axis=1)[:, 0]
    if not sizes.any():
        return Floor(None, None)
    tested = sizes > 0
    return Floor(float(hits.sum() / sizes.sum()), float((hits[tested] / sizes[tested]).mean()))


def partition_hash(y: NDArray[Any], parts: Sequence[Parts]) -> str:
    """SHA-256 of all parts' lengths, indices and targets, client by client; the same on every machine."""
    digest, groups = hashlib.sha256(), [i for p in parts for i in (p.train, p.val, p.test)]
    for at in range(0, len(groups), TOGETHER):
        some = groups[at : at + TOGETHER]
        digest.update(_joined(y, some) if y.ndim == 1 and y.dtype.kind in "iu" else _one_by_one(y, some))
    return digest.hexdigest()


def _one_by_one(y: NDArray[Any], groups: Sequence[Indices]) -> bytes:
    numbers = (n for group in groups for n in (np.array([len(group)]), group, y[group]))
    return b"".join(n.astype("<f4" if n.dtype.kind == "f" else "<i8").tobytes() for n in numbers)


def _joined(y: NDArray[Any], groups: Sequence[Indices]) -> bytes:
    """The same for classes, without a loop over groups, of which there may be millions."""
    lengths, indices = np.array([len(group) for group in groups]), np.concatenate(groups)
    before = np.cumsum(lengths) - lengths
    starts = np.arange(len(groups)) + 2 * before
    at = np.repeat(starts + 1 - before, lengths) + np.arange(len(indices))
    found = np.empty(len(groups) + 2 * len(indices), "<i8")
    found[starts] = lengths
    found[at] = indices
    found[at + np.repeat(lengths, lengths)] = y[indices]
    return found.tobytes()


def _spread(values: NDArray[np.int64]) -> Spread:
    return Spread(float(values.min()), float(np.median(values)), float(values.max()))
