"""The metrics that the registry computes with NumPy in float64, each from one client's scores and targets.

scores  [n, classes], [n, labels], [n, quantities] or [n, classes, height, width], as networks give them (no softmax)
targets [n] classes, [n, labels] of 0 and 1, [n, quantities], or [n, height, width] classes
None    not measured: the metric is not defined for these samples

The bits are the same on every machine and in any order of the samples: sums are exact, counts are whole numbers, and
`exp` and `log` consist of roundings that IEEE 754 prescribes, which those of libraries do not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Counts = Sequence[float]
"""of pixels, for each class"""

BINS = 15
"""of equal width, into which `ece` sorts predictions by their confidence"""
LN2 = float.fromhex("0x1.62e42fefa4p-1"), float.fromhex("-0x1.8432a1b0e2634p-43")
"""ln 2 as two numbers; the first has so few bits that its product with an exponent is exact"""
INVERSE_FACTORIALS = [1 / math.factorial(k) for k in range(14)]


def exp(x: Array) -> Array:
    """2^k e^r with |r| <= ln 2 / 2, where a Taylor polynomial gives e^r."""
    x = x.clip(-745, 709)
    k = np.rint(x / (LN2[0] + LN2[1]))
    r = (x - k * LN2[0]) - k * LN2[1]
    total = np.full_like(r, INVERSE_FACTORIALS[-1])
    for factor in INVERSE_FACTORIALS[-2::-1]:
        total = total * r + factor
    return np.ldexp(total, np.nan_to_num(k).astype(np.int32))


def log(x: Array) -> Array:
    """Of positive numbers m 2^k, with m around 1: log m = 2 artanh((m - 1) / (m + 1))."""
    m, k = np.frexp(x)
    small = m < math.sqrt(0.5)
    m = np.where(small, 2 * m, m)
    k = k - small
    s = (m - 1) / (m + 1)
    total = np.zeros_like(s)
    for power in range(23, 0, -2):
        total = total * s * s + 1 / power
    return k * LN2[0] + (k * LN2[1] + 2 * s * total)


def log_softmax(z: Array) -> Array:
    """Over the classes, [n, classes]."""
    z = z.astype(np.float64)
    z = z - z.max(1, keepdims=True)
    return z - log(exp(z).cumsum(1)[:, -1:])  # a running sum has one order, on every machine


def softplus(z: Array) -> Array:
    """log(1 + e^z)."""
    return z.clip(min=0) + log(1 + exp(-abs(z)))


def auc(z: Array, y: Array) -> float | None:
    """The area under the ROC curve; over classes or labels, the mean of each one against the rest."""
    return _mean(_area(positive, s) for positive, s in _one_against_rest(z, y))


def average_precision(z: Array, y: Array) -> float | None:
    """The precision at each positive, averaged; over classes or labels, the mean of each one against the rest."""
    return _mean(_precision(positive, s) for positive, s in _one_against_rest(z, y))


def log_loss(z: Array, y: Array) -> float | None:
    """Minus the logarithm of the true classes' probability, averaged; of labels likewise."""
    if y.ndim == z.ndim:
        z = z.astype(np.float64)
        return _mean(softplus(np.where(y > 0.5, -z, z)).flat)
    return _mean(-log_softmax(z)[np.arange(len(y)), y])


def ece(z: Array, y: Array) -> float | None:
    """The expected calibration error: by how much confidence and accuracy differ, averaged over bins of confidence."""
    if y.ndim == z.ndim:  # a label is a choice between two
        hits = ((z > 0) == (y > 0.5)).flatten()
        sure = exp(-softplus(-abs(z.astype(np.float64)))).flatten()
    else:
        hits = z.argmax(1) == y
        sure = exp(log_softmax(z).max(1))
    bins = np.nan_to_num(sure * BINS).astype(np.int64).clip(max=BINS - 1)
    gaps = [abs(int(hits[bins == b].sum()) - _sum(sure[bins == b])) for b in range(BINS)]
    return _sum(gaps) / len(hits)


def mae(z: Array, y: Array) -> float | None:
    """The mean absolute error; over several quantities, their mean."""
    return _mean(_mean(abs(errors)) for errors in _errors(z, y))


def rmse(z: Array, y: Array) -> float | None:
    """The root of the mean squared error; over several quantities, their mean."""
    return _mean(_root(_mean(errors**2)) for errors in _errors(z, y))


def r2(z: Array, y: Array) -> float | None:
    """The share of the variance that is explained; over several quantities, the mean of those that vary."""
    return _mean(_explain(errors, own) for errors, own in zip(_errors(z, y), y.astype(np.float64).T, strict=True))


def dice(both: Counts, true: Counts, predicted: Counts) -> float | None:
    """Twice the overlap of predicted and true pixels over their sum, the mean over classes that occur in either."""
    return _mean(2 * b / (t + p) for b, t, p in zip(both, true, predicted, strict=True) if t + p)


def iou(both: Counts, true: Counts, predicted: Counts) -> float | None:
    """The overlap of predicted and true pixels over their union, the mean over classes that occur in either."""
    return _mean(b / (t + p - b) for b, t, p in zip(both, true, predicted, strict=True) if t + p)


def _one_against_rest(z: Array, y: Array) -> Iterator[tuple[Array, Array]]:
    """For each class or label: which samples have it, and scores to rank them; of two classes, the second only."""
    if y.ndim == z.ndim:
        yield from zip((y > 0.5).T, z.astype(np.float64).T, strict=True)
    elif z.shape[1] == 2:
        yield y == 1, z[:, 1].astype(np.float64) - z[:, 0]
    else:
        yield from ((y == k, s) for k, s in enumerate(log_softmax(z).T))


def _steps(positive: Array, s: Array) -> tuple[list[int], list[int]]:
    """Positives and negatives at each different score, from the lowest; a score that is not a number is the lowest."""
    levels, at = np.unique(np.where(np.isnan(s), -np.inf, s), return_inverse=True)
    counts = np.bincount(2 * at + positive, minlength=2 * len(levels)).reshape(-1, 2)
    return counts[:, 1].tolist(), counts[:, 0].tolist()


def _area(positive: Array, s: Array) -> float | None:
    """The share of pairs of a positive and a negative that are in the right order; equal scores count half."""
    pairs = int(positive.sum()) * int((~positive).sum())
    below = twice = 0
    for ones, zeros in zip(*_steps(positive, s), strict=True):
        twice += ones * (2 * below + zeros)
        below += zeros
    return twice / (2 * pairs) if pairs else None


def _precision(positive: Array, s: Array) -> float | None:
    if not 0 < positive.sum() < len(positive):
        return None
    ones, zeros = (np.array(counts[::-1]) for counts in _steps(positive, s))
    hits = ones.cumsum()
    return _sum(ones * (hits / (hits + zeros.cumsum()))) / int(positive.sum())


def _errors(z: Array, y: Array) -> Array:
    """[quantities, n]."""
    return (z.astype(np.float64) - y).T


def _explain(errors: Array, own: Array) -> float | None:
    total = _sum((own - _sum(own) / len(own)) ** 2)
    return 1 - _sum(errors**2) / total if total > 0 else None


def _root(value: float | None) -> float | None:
    return None if value is None else math.sqrt(value)


def _mean(values: Iterable[float | None]) -> float | None:
    """Of those that are measured."""
    defined = [float(value) for value in values if value is not None]
    return _sum(defined) / len(defined) if defined else None


def _sum(values: Iterable[float]) -> float:
    """Exact, and so the same in any order; not a number where it overflows."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):  # infinities of both signs, or more than the largest number
        return math.nan
