"""Outputs of a model for one client's samples, their scores, and the combination of scores over all clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ...log.metrics import ACCURACY, Metric, Predictions, Score, metrics_over_clients
from ..host import move_to
from ..kernels.native.chain import predict
from ..plan import Plan


@torch.no_grad()
def compute_outputs(network: Callable[[Tensor], Tensor], x: Tensor, batch: int, *, fast: bool) -> Tensor:
    """The network's output for all rows of `x`: by the native kernels if `fast`, else `batch` rows at a time.

    All rows belong to one client: the last bits of an output may depend on the other samples in the batch.
    """
    if isinstance(network, nn.Module):
        network.eval()
        if fast and (outputs := predict(network, x)) is not None:
            return outputs
    return torch.cat([network(part) for part in x.split(batch)])


def evaluate_model(plan: Plan, network: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The same as evaluations of this plan compute it, on its device; the outputs are on the CPU."""
    return compute_outputs(network, move_to(x, plan.device), plan.experiment.evaluate.batch, fast=plan.fast).cpu()


def score(z: Tensor, y: Tensor, metrics: Sequence[Metric], task: str) -> Score:
    """These metrics of the scores `z` for the targets `y`, except those that are undefined for them."""
    return score_predictions(Predictions(z, y, task), metrics)


def score_predictions(predictions: Predictions, metrics: Sequence[Metric]) -> Score:
    values = {m.name: m.of(predictions) for m in metrics if not isinstance(m.of, str)}
    return {"n": predictions.n, **{name: float(value) for name, value in values.items() if value is not None}}


def summarize_clients(scores: Mapping[int, Score], main: Metric = ACCURACY) -> dict[str, float]:
    """Each metric over the clients that have it, and their number if not all do; the number of clients and samples."""
    ordered = [scores[c] for c in sorted(scores)]
    summary: dict[str, float] = {}
    for metric in metrics_over_clients(main):
        measured = [s for s in ordered if metric.source in s]
        if measured:
            values, n = (np.array([s[name] for s in measured], dtype=float) for name in (metric.source, "n"))
            summary[metric.name] = metric.aggregate(values, n)
            if len(measured) < len(ordered) and metric.source == metric.name:
                summary[f"{metric.name}_clients"] = len(measured)
    return {**summary, "clients": len(ordered), "samples": sum(int(s["n"]) for s in ordered)}
