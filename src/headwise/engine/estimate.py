"""How long a run takes, from a few steps of training on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn

from ..models.replicas import replica
from ..tasks.base import Objective
from ..tasks.classification import CROSS_ENTROPY
from ..tasks.registry import objective_of
from .kernels.descent import Descent
from .kernels.layers import chain_of
from .plan import Plan

LONG = 20.0
"""seconds of training above which starting more processes pays off"""
STACKED = 10.0
"""rough speed-up of many small clients handled side by side"""


def training_step(model: nn.Module, x: Tensor, y: Tensor, objective: Objective = CROSS_ENTROPY) -> Callable[[], None]:
    """A plain training step on this batch, with learning rate zero: it costs like any other and changes nothing."""
    descent = Descent(list(model.parameters()), lr=0.0, momentum=0.0, weight_decay=0.0, clip=None)
    return lambda: descent.step(objective.loss(model(x), y))


def seconds_per_step(plan: Plan, steps: int = 2) -> float:
    """The median time of a plain training step of the first network, after one warm-up step."""
    model = replica(plan.models[0], {})
    size = min(plan.experiment.train.batch, len(plan.data.y))
    step = training_step(model, plan.data.x[:size], plan.data.y[:size], objective_of(plan.data.task))
    times: list[float] = []
    for _ in range(1 + steps):
        begun = time.perf_counter()
        step()
        times.append(time.perf_counter() - begun)
    found = median(times[1:])
    return found / STACKED if plan.fast and chain_of(model, [model]) else found


def training_seconds(plan: Plan) -> float:
    """How long all rounds of plain training would take in one process."""
    run, n = plan.experiment, len(plan.data)
    mean = sum(plan.data.sizes(c)[0] for c in range(n)) / n
    each = run.train.steps or run.train.epochs * mean / run.train.batch
    steps = run.rounds * run.sampling.ratio * n * each
    return steps * seconds_per_step(plan)


def is_long(plan: Plan) -> bool:
    """Whether starting more processes pays off."""
    with torch.random.fork_rng(devices=[]):
        return training_seconds(plan) > LONG
