"""A rehearsal on single samples: what a method does with data is found by watching it, before anything is run."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch

from ..data.federated import Clients
from ..errors import AccountingError, ClientError, ConfigError
from ..method import Reply
from .options import Faults
from .plan import Plan
from .server import ServerBench
from .state import ClientState
from .worker import Job, handle

ROUNDS = 2
"""some methods do more once a client has a model of its own"""


def rehearse(plan: Plan) -> int:
    """Let a few clients with one sample each train for two rounds; return the epochs of a round.

    A method or a network whose privacy can't be accounted for raises `AccountingError`. One that does something else in
    later rounds is stopped there, by the same rules.
    """
    if find_spec("opacus") is None:
        raise ConfigError("privacy.clip is set, but Opacus is not there: pip install 'headwise[privacy]'.")
    try:
        return _play(_small(plan))
    except ClientError as error:
        raise error.__cause__ if isinstance(error.__cause__, AccountingError) else error from None


def _small(plan: Plan) -> Plan:
    """The plan with two clients or more, at least one of each architecture, and with samples that say nothing."""
    count, task = max(2, len(plan.models)), plan.data.task
    x = torch.zeros(count, *task.shape, dtype=torch.int64 if task.vocabulary else torch.float32)
    data = Clients(task, x, torch.arange(count) % task.classes, [[c + 1] * 3 for c in range(count)])
    whole = replace(plan.train, drop_last=False)  # or one sample would make no batch
    return replace(plan, data=data, train=whole, faults=Faults())


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
            epochs = max(epochs, answer.samples)  # an epoch of one sample is one sample
        server = method.aggregate(server, replies, central)
    return epochs
