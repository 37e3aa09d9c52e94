"""Scores of a model on one client's samples, and their combination over all clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from ...log.metrics import ACCURACY, Metric, Predictions, Score, metrics_over_clients


def score(z: Tensor, y: Tensor, wanted: Sequence[Metric], task: str) -> Score:
    """These metrics of the scores `z` for the targets `y`; without those that are not defined for them."""
    return score_of(Predictions(z, y, task), wanted)


def score_of(said: Predictions, wanted: Sequence[Metric]) -> Score:
    values = {m.name: m.of(said) for m in wanted if not isinstance(m.of, str)}
    return {"n": said.n, **{name: float(value) for name, value in values.items() if value is not None}}


def over_clients(scores: Mapping[int, Score], main: Metric = ACCURACY) -> dict[str, float]:
    """Each metric over the clients that have it, and their number if not all do; the number of clients and samples."""
    ordered = [scores[c] for c in sorted(scores)]
    found: dict[str, float] = {}
    for metric in metrics_over_clients(main):
        measured = [s for s in ordered if metric.source in s]
        if measured:
            values, n = (np.array([s[name] for s in measured], dtype=float) for name in (metric.source, "n"))
            found[metric.name] = metric.aggregate(values, n)
            if len(measured) < len(ordered) and metric.source == metric.name:
                found[f"{metric.name}_clients"] = len(measured)
    return {**found, "clients": len(ordered), "samples": sum(int(s["n"]) for s in ordered)}
