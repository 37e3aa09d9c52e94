"""Scores of a model on one client's samples, and their combination over all clients."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from ...log.metrics import Metric, Predictions, Score, metrics


def score(z: Tensor, y: Tensor) -> Score:
    """Every metric of the class scores `z`, [n, classes], for these labels."""
    said = Predictions(z, y)
    values = {m.name: m.of(said) for m in metrics() if not isinstance(m.of, str)}
    return {"n": len(y), **{name: float(value) for name, value in values.items() if value is not None}}


def over_clients(scores: Mapping[int, Score]) -> dict[str, float]:
    """Each metric over the clients that have it, and the number of clients and samples."""
    ordered = [scores[c] for c in sorted(scores)]
    found = {m.name: value for m in metrics() if (value := _combined(m, ordered)) is not None}
    return {**found, "clients": len(ordered), "samples": sum(int(s["n"]) for s in ordered)}


def _combined(metric: Metric, scores: list[Score]) -> float | None:
    measured = [s for s in scores if metric.source in s]
    if not measured:
        return None
    values, n = (np.array([s[name] for s in measured], dtype=float) for name in (metric.source, "n"))
    return metric.over(values, n)
