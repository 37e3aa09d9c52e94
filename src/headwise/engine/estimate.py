"""How long a run takes, from a few steps of training on this machine."""

from __future__ import annotations

import time
from statistics import median

import torch

from ..models.replicas import replica
from ..tasks.registry import objective_of
from .kernels.optimizer import Rates
from .kernels.training import Feed, choose
from .plan import Plan

LONG = 20.0
"""seconds of training above which starting more processes pays off"""
STEPS = 2
"""that are timed"""


def seconds_per_step(plan: Plan) -> float:
    """The median time of a training step of the first network, by the kernel that will train it."""
    train = plan.experiment.train
    model = replica(plan.models[0], {})
    size = min(train.batch, len(plan.data.y))
    x = plan.data.x[:size]
    y = plan.data.y[:size]
    batch = torch.arange(size).unsqueeze(0)
    kernel = choose(
        *(model, [model], None, Rates(0.0)),
        models=[model],
        fast=plan.fast,
        objective=objective_of(plan.data.task),
        whole=not train.augment,
    )
    feed = Feed(lambda: iter([(x, y)]), lambda: (x, y, batch))
    times: list[float] = []
    for _ in range(1 + STEPS):  # the first one warms up
        begun = time.perf_counter()
        kernel.train(feed)
        times.append(time.perf_counter() - begun)
    return median(times[1:])


def training_seconds(plan: Plan) -> float:
    """How long all rounds of plain training would take in one process."""
    run = plan.experiment
    n = len(plan.data)
    mean = sum(plan.data.sizes(c)[0] for c in range(n)) / n
    each = run.train.steps or run.train.epochs * mean / run.train.batch
    steps = run.rounds * run.sampling.ratio * n * each
    return steps * seconds_per_step(plan)


def is_long(plan: Plan) -> bool:
    """Whether starting more processes pays off."""
    with torch.random.fork_rng(devices=[]):
        return training_seconds(plan) > LONG
