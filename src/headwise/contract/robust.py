"""Robust alternatives to the clients' mean, for federations in which some clients may be hostile.

median            of each coordinate; Yin et al., *Byzantine-Robust Distributed Learning*, ICML 2018, Definition 1
trimmed           mean of each coordinate without its largest and smallest values; the same, Definition 2
clipped           mean of changes of limited norm; Sun et al., *Can You Really Backdoor Federated Learning?*, 2019
krum, multi-krum  the model nearest to its neighbours, or the mean of the nearest ones; Blanchard et al., *Machine
                  Learning with Adversaries*, NeurIPS 2017, Section 4
geometric         the point with the least sum of distances; Pillutla et al., *Robust Aggregation for Federated
                  Learning*, IEEE TSP 2022, Algorithm 2

Only the mean, the clipped mean and the geometric median weight clients by their samples. A hostile client may claim any
number of them: `faults.max_samples` limits it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..params import Params, mean

STEPS = 100
"""maximum iterations for the geometric median"""
NEAR = 1e-6
"""lower bound on distances, and the step below which the geometric median has converged"""


def combine(
    rule: str, items: Sequence[Params], weights: Sequence[float], around: Params, hostile: float, clip: float | None
) -> Params:
    """Combine the clients' models by this rule; `around` is what they were sent, integers come from the first client.

    `hostile` is the share of clients that may be hostile, `clip` the largest norm of a change (None: their median).
    """
    if rule == "mean":
        return mean(items, weights)
    rows = torch.stack([_row(item) for item in items])
    shares = torch.tensor(weights, dtype=torch.float64)
    shares = (shares / shares.sum()).to(rows.dtype)
    few = int(hostile * len(items) + 1e-9)
    if rule == "median":
        return _restore(items[0], _take_median(rows))
    if rule == "trimmed":
        few = min(few, (len(items) - 1) // 2)
        return _restore(items[0], rows.sort(dim=0).values[few : len(items) - few].mean(0))
    if rule == "clipped":
        start = _row(around)
        return _restore(items[0], start + shares @ _clip(rows - start, clip))
    if rule == "geometric":
        return _restore(items[0], _geometric(rows, shares))
    scores = _krum_scores(rows, few)
    best = scores.argsort(stable=True)[: 1 if rule == "krum" else len(items) - few]
    return _restore(items[0], rows[best].mean(0))


def _row(item: Params) -> Tensor:
    """All floating-point numbers of a model in one row."""
    numbers = [t.reshape(-1) for t in item.values() if t.is_floating_point()]
    return torch.cat(numbers) if numbers else torch.empty(0)


def _restore(first: Params, row: Tensor) -> Params:
    """A model with these numbers, and with the names and shapes of `first`."""
    values = dict(first)
    at = 0
    for name, t in first.items():
        if t.is_floating_point():
            values[name] = row[at : at + t.numel()].view(t.shape).to(t.dtype)
            at += t.numel()
    return Params(values)


def _take_median(rows: Tensor) -> Tensor:
    """The median over the first dimension; of an even number, the mean of the middle two."""
    n = len(rows)
    ordered = rows.sort(dim=0).values
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def _clip(changes: Tensor, clip: float | None) -> Tensor:
    norms = changes.norm(dim=1)
    most = _take_median(norms) if clip is None else torch.tensor(clip, dtype=norms.dtype)
    return changes * (most / norms.clamp(min=NEAR)).clamp(max=1.0)[:, None]


def _krum_scores(rows: Tensor, few: int) -> Tensor:
    """For each row, the sum of squared distances to its n - f - 2 nearest neighbours."""
    near = max(1, len(rows) - few - 2)
    between = torch.stack([(rows - row).square().sum(1) for row in rows])
    return between.sort(dim=1).values[:, 1 : near + 1].sum(1)  # the first is the distance to itself


def _geometric(rows: Tensor, shares: Tensor) -> Tensor:
    """Smoothed Weiszfeld iteration: a client's weight is its share divided by its distance."""
    point = shares @ rows
    for _ in range(STEPS):
        pull = shares / (rows - point).norm(dim=1).clamp(min=NEAR)
        before, point = point, (pull @ rows) / pull.sum()
        if float((point - before).norm()) <= NEAR:
            break
    return point
