"""Statistics of a partition: its hash, its sizes, and the accuracy of guessing the majority class."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .partition.shares import Counts, histograms
from .splits import Parts

__all__ = ["Floor", "Spread", "Summary", "histograms", "majority_floor", "partition_hash", "summarize"]


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
    digest = hashlib.sha256()
    y = y.astype("<f4" if y.dtype.kind == "f" else "<i8", copy=False)
    for part in (i for p in parts for i in (p.train, p.val, p.test)):
        digest.update(len(part).to_bytes(8, "little") + part.astype("<i8", copy=False).tobytes() + y[part].tobytes())
    return digest.hexdigest()


def _spread(values: NDArray[np.int64]) -> Spread:
    return Spread(float(values.min()), float(np.median(values)), float(values.max()))
