"""A rehearsal on single samples: before a run, watch what the method does with data."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from ..contract.method import Reply, record_types
from ..data.federated import Clients
from ..engine.client.jobs import Job, handle
from ..engine.client.state import ClientState
from ..engine.plan import Plan
from ..engine.server_bench import ServerBench
from ..errors import AccountingError, ClientError, ConfigError
from ..records import Nothing
from ..settings.options import Faults
from ..tasks.registry import kind_of
from .mechanisms import mechanism_for

ROUNDS = 2
"""some methods do more once a client has its own model"""


def protected(plan: Plan) -> Plan:
    """The plan with its mechanism; raises `ConfigError` if the method's privacy can't be accounted for."""
    experiment = plan.experiment
    privacy, name = experiment.privacy, experiment.method.name
    if privacy.clip is None:
        return plan
    clip = f"privacy.clip is {privacy.clip:g}" + f" and privacy.level {privacy.level!r}" * (privacy.level != "client")
    if experiment.buffers == "all":
        raise ConfigError(f"{clip}, but buffers is 'all', and BatchNorm statistics can't be protected.")
    if experiment.faults.reaction == "retry":
        raise ConfigError(
            f"{clip}, but faults.on_failure is 'retry', and every further answer of a client reveals more."
        )
    if record_types(type(plan.method)).census is not Nothing:
        raise ConfigError(f"{clip}, but clients of {name} answer a census, which no mechanism protects.")
    try:
        plan = replace(plan, privacy=mechanism_for(privacy, plan.method))
        return replace(plan, epochs_accounted=rehearse(plan))
    except AccountingError as error:
        raise ConfigError(f"{clip}, but {name} can't be accounted for: {error}.") from error


def rehearse(plan: Plan) -> int:
    """Let a few clients with one sample each train for two rounds; return the epochs per round.

    Raises `AccountingError` for a method or network whose privacy can't be accounted for. One that only misbehaves in
    later rounds is stopped there, by the same rules.
    """
    if find_spec("opacus") is None:
        raise ConfigError("privacy.clip is set, but Opacus is not installed: pip install 'headwise[privacy]'.")
    try:
        return _play(_small(plan))
    except ClientError as error:
        raise error.__cause__ if isinstance(error.__cause__, AccountingError) else error from None


def _small(plan: Plan) -> Plan:
    """The plan with at least two clients, one or more per architecture, and with blank samples."""
    count, task = max(2, len(plan.models)), plan.data.task
    x = torch.zeros(count, *task.shape, dtype=torch.int64 if task.vocabulary else torch.float32)
    data = Clients(task, x, kind_of(task).blank(task, count), np.arange(1, count + 1).repeat(3).reshape(-1, 3))
    whole = replace(plan.experiment.train, drop_last=False)  # or one sample would give no batch
    return replace(plan, data=data).changed(train=whole, faults=Faults())


def _play(plan: Plan) -> int:
    states: dict[int, ClientState | None] = {}
    method, epochs = plan.method, 0
    server = method.server_init(ServerBench(plan, 0))
    for t in range(1, ROUNDS + 1):
        central, replies = ServerBench(plan, t), list[Reply[Any]]()
        for c in range(len(plan.data)):
            job = Job("fit", c, t, method.broadcast(server, c, central), measure=False)
            answer, states[c] = handle(plan, job, states.get(c))
            replies.append(Reply(c, answer.up, answer.n))
            epochs = max(epochs, answer.samples)  # with one sample, samples are epochs
        server = method.aggregate(server, replies, central)
    return epochs
