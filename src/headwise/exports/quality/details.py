"""What lies behind a model's metrics: each class, label or quantity by itself, and how sure the model is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ...engine.client.scores import score
from ...log.choosing import wanted
from ...log.predictions import Hits

BINS = 10
"""of probabilities"""
INTERVALS = 20
"""of errors"""
POINTS = 500
"""samples that a picture of a quantity shows"""

Array = NDArray[Any]


class Bin(NamedTuple):
    """Predictions with about this probability."""

    low: float
    high: float
    n: int
    confidence: float
    """their mean probability"""
    accuracy: float
    """the share of them that is right"""


class Residuals(NamedTuple):
    """How predictions of one quantity differ from the truth."""

    name: str
    edges: list[float]
    """of intervals of predicted minus true values"""
    counts: list[int]
    """samples in each interval"""
    points: list[tuple[float, float]]
    """true and predicted values of some samples"""


def each_of(task: str, names: Sequence[str], hits: Hits) -> list[dict[str, Any]]:
    """A row for each class or label, by headings; None where a figure is not defined."""
    counts = zip(*(each.long().tolist() for each in hits), strict=True)
    return [_hits(task, name, *found) for name, found in zip(names, counts, strict=True)]


def quantities(names: Sequence[str], z: Array, y: Array) -> list[dict[str, Any]]:
    """A row for each quantity."""
    return [_quantity(name, z[:, k : k + 1], y[:, k : k + 1]) for k, name in enumerate(names)]


def _hits(task: str, name: str, both: int, true: int, said: int) -> dict[str, Any]:
    what = {"classification": ("class", "samples"), "multilabel": ("label", "samples with it")}
    one, all_of_it = what.get(task, ("class", "pixels"))
    found = {one: name, all_of_it: true, "predicted": said}
    overlap = _share(2 * both, true + said)
    if task == "segmentation":
        return {**found, "IoU": _share(both, true + said - both), "Dice": overlap}
    return {**found, "precision": _share(both, said), "recall": _share(both, true), "F1": overlap}


def _quantity(name: str, z: Array, y: Array) -> dict[str, Any]:
    usual = wanted("regression", (), None)
    measured = score(torch.from_numpy(z), torch.from_numpy(y), usual, "regression")
    figures = {m.label: measured.get(m.name) for m in usual if m.column}
    mean, bias = (float(v.mean()) for v in (y.astype(np.float64), z.astype(np.float64) - y))
    return {"quantity": name, "mean": mean, "mean error": bias, **figures}


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def certainty(task: str, probabilities: Array, z: Array, y: Array) -> tuple[Array, Array]:
    """The probability of each prediction, of a sample, label or pixel, and whether it is right."""
    if task == "multilabel":
        return np.maximum(probabilities, 1 - probabilities).ravel(), ((z > 0) == (y > 0.5)).ravel()
    return probabilities.max(1).ravel(), (z.argmax(1) == y).ravel()


def binned(sure: Array, right: Array) -> Array:
    """[3, bins] for equal intervals of probability: predictions, the sum of their probabilities, and those right."""
    place = np.minimum((sure * BINS).astype(np.int64), BINS - 1)
    return np.stack([np.bincount(place, weights, BINS) for weights in (None, sure, right)])


def reliability(sums: Array) -> list[Bin]:
    """The intervals that hold predictions."""
    held = [(k, *column) for k, column in enumerate(sums.T.tolist()) if column[0]]
    return [Bin(k / BINS, (k + 1) / BINS, int(n), sure / n, right / n) for k, n, sure, right in held]


def residuals(names: Sequence[str], z: Array, y: Array) -> list[Residuals]:
    """Of each quantity."""
    found: list[Residuals] = []
    for name, said, true in zip(names, z.T.astype(np.float64), y.T.astype(np.float64), strict=True):
        counts, edges = np.histogram((said - true)[np.isfinite(said)], INTERVALS)
        some = np.flatnonzero(np.isfinite(said))[:: -(-len(true) // POINTS)]
        points = [(float(true[i]), float(said[i])) for i in some]
        found.append(Residuals(name, edges.tolist(), counts.tolist(), points))
    return found
