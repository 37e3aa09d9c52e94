"""Whether sample weights can count in a run: refused before there is one, rather than ignored in silence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..engine.answers import Answer
from ..engine.client.jobs import Job
from ..engine.driver import drive
from ..engine.executors.local import Serial
from ..engine.host import one_thread
from ..engine.plan import Plan
from ..errors import ClientError, ConfigError
from ..records import encode
from ..tasks.weights import OWN_LOSS

ROUNDS = 2
"""some methods do more once a client has its own model"""
FEW = 8
"""samples of a client in a rehearsal"""


def check_weights(plan: Plan) -> None:
    """Raise if the data have sample weights, and the run would ignore them."""
    weight = plan.data.weight
    if weight is None:
        return
    experiment = plan.experiment
    has = "the data have sample weights"
    if experiment.drift.round:
        raise ConfigError(f"drift.round is {experiment.drift.round}, but {has}, which do not drift.")
    if experiment.privacy.clip is not None and experiment.privacy.level == "example":
        raise ConfigError(f"privacy.level is 'example', but {has}, which no mechanism protects.")
    for c in plan.clients:
        start = plan.data.start(c)
        if not float(weight[start : start + plan.data.sizes(c)[0]].sum()) > 0:
            raise ConfigError(f"{plan.data.describe(c)} has no training sample whose weight is above 0.")
    try:
        ends = [_rehearse(plan, weights) for weights in (torch.ones(FEW), torch.arange(1.0, FEW + 1))]
    except ClientError as error:
        raise error.__cause__ if isinstance(error.__cause__, ConfigError) else error from None
    if ends[0] == ends[1]:
        raise ConfigError(f"{OWN_LOSS}.")


def _rehearse(plan: Plan, weights: Tensor) -> list[bytes | None]:
    """What a few clients send and keep in two rounds on some of the samples, with these weights."""
    data = plan.data
    count = max(2, len(plan.models))
    first = [data.client(c).train for c in (*plan.clients, *plan.clients)[:count]]
    kept = [min(len(samples), FEW) for samples in first]
    few = replace(  # each client's last sample is also its test sample, so that it makes its model from its samples
        data,
        x=torch.cat([samples.x[[*range(n), n - 1]] for samples, n in zip(first, kept, strict=True)]),
        y=torch.cat([samples.y[[*range(n), n - 1]] for samples, n in zip(first, kept, strict=True)]),
        ends=np.cumsum([(n, 0, 1) for n in kept]).reshape(-1, 3),
        names=(),
        absent=frozenset(),
        weight=torch.cat([weights[[*range(n), n - 1]] for n in kept]),
    )
    train = replace(plan.experiment.train, epochs=1, steps=None, drop_last=False)
    small = replace(plan, data=few).with_settings(train=train).for_rehearsal()
    small = small.with_settings(evaluate=replace(small.experiment.evaluate, moments=("pre",), every=1))
    executor = _MessageRecorder(small)
    with one_thread():
        drive(small, executor, rounds=ROUNDS)
    return [*executor.messages, *(executor.states.encode(c) for c in executor.states)]


class _MessageRecorder(Serial):
    """Keeps what clients send."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.messages: list[bytes] = []

    def run(self, jobs: Iterable[Job]) -> Iterator[Answer]:
        for answer in super().run(jobs):
            self.messages += [] if answer.up is None else [encode(answer.up)]
            yield answer
