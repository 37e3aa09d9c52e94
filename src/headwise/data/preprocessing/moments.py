"""Counts, sums and sums of squares, which clients can add up, and the means and deviations that follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def sums_from(numbers: Floats, starts: NDArray[np.int64]) -> Floats:
    """[starts, 3, columns]: over the rows from each start to the next, bit for bit what each client computes alone."""
    there = ~np.isnan(numbers)
    filled = np.where(there, numbers, 0)
    if not len(numbers):
        return np.zeros((len(starts), 3, numbers.shape[1]))
    each = (there.astype(np.float64), filled, filled * filled)
    return np.stack([np.add.reduceat(a, starts, axis=0) for a in each], axis=1)


def sums_over(y: NDArray[Any], clients: Sequence[NDArray[np.int64]]) -> Floats:
    """[3, columns]: the sums of these clients' rows, client after client, as a server adds up what sites tell."""
    rows = [c for c in clients if len(c)]
    sizes = np.array([len(c) for c in rows], np.int64)
    numbers = y[np.concatenate(rows)].astype(np.float64) if rows else np.empty((0, y.shape[1]))
    found = sums_from(numbers, np.cumsum(sizes) - sizes)
    return np.add.accumulate(np.concatenate([np.zeros((1, 3, y.shape[1])), found]), axis=0)[-1]


def mean_and_deviation(sums: Floats) -> tuple[Floats, Floats]:
    """Of each column; the deviation of one that is constant is 1."""
    count, total, square = sums
    n = np.maximum(count, 1)
    mean = total / n
    variance = square / n - mean * mean
    varies = variance > 1e-12 * np.maximum(mean * mean, 1e-12)
    return mean, np.sqrt(np.where(varies, variance, 1))
