"""What the metric of a run would be for models that know the targets of their client, but do not look at inputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..engine.client.scores import over_clients, score
from ..log.metrics import ACCURACY, Metric

Floors = dict[str, dict[str, Any]]
"""by metric: its value over all clients, and each client's; None where it is not defined"""


def floors(metric: Metric, task: str, guesses: Iterable[tuple[Tensor, Tensor] | None]) -> Floors:
    """From the scores that each client's constant model gives its test samples, and their targets."""
    each = [None if pair is None else score(*pair, [metric], task) for pair in guesses]
    over = over_clients({c: found for c, found in enumerate(each) if found}, metric)
    clients = [found and found.get(metric.name) for found in each]
    return {metric.name: {"over": over.get(metric.name), "clients": clients}}


def from_histograms(metric: Metric, train: Sequence[Sequence[int]], test: Sequence[Sequence[int]]) -> Floors:
    """For classes, from how many samples of each the clients have; nothing for accuracy, which the summary has."""
    if metric is ACCURACY or not train:
        return {}
    return floors(metric, "classification", map(_constant, train, test))


def _constant(own: Sequence[int], have: Sequence[int]) -> tuple[Tensor, Tensor] | None:
    """Each class as likely as in the training samples, as if each had been seen once more."""
    counts = torch.tensor(own, dtype=torch.float64) + 1
    y = torch.arange(len(have)).repeat_interleave(torch.tensor(have))
    return ((counts / counts.sum()).log().expand(len(y), -1), y) if len(y) else None
