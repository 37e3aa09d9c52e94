"""The contract of an executor."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from ...contract.method import record_types
from ...data.federated import Clients
from ...settings.options import Engine
from ..client.jobs import Answer, Job
from ..client.state import States
from ..events import ClientDone, ClientFailed, Observer
from ..host.clock import Clock
from ..plan import Plan

TOGETHER = 128
"""clients that one process handles side by side, at most"""
MEMORY = 64 * 2**20
"""bytes of models that these may have"""


class Executor(Protocol):
    """Where clients live: in this process, in a pool of processes, on other machines."""

    workers: int
    """clients that are handled at the same time"""
    states: States
    """the states of the clients that have trained, as far as they are kept here"""
    clock: Clock
    """what all workers together spent their time on"""

    def run(self, jobs: Iterable[Job]) -> Iterator[Answer]:
        """Do the jobs, in any order; training also renews the client's state."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


class Setup(NamedTuple):
    """What an executor is made of."""

    plan: Plan
    states: States
    """from which the clients go on"""
    engine: Engine
    workers: int
    """clients to handle at the same time: what `engine.workers` comes to"""
    experiment: str
    """as JSON, from which another process or machine can build the same plan"""
    rebuild: Callable[[Clients], Plan]
    """builds it in another process, which has the data already"""
    data_dir: Path
    folder: Path
    """the run's"""


def collect(executor: Executor, jobs: list[Job], tell: Observer) -> dict[int, Answer]:
    """All answers in client order, whatever the order they came in; without those of clients that failed."""
    answers: dict[int, Answer] = {}
    for a in executor.run(jobs):
        if a.failure:
            tell(ClientFailed(a.t, a.client, a.kind, *a.failure))
            continue
        answers[a.client] = a
        tell(ClientDone(a.t, a.client, a.kind, a.samples))
    return dict(sorted(answers.items()))


def states_of(plan: Plan, states: States | None) -> States:
    """The states to go on with; none given: those of a run that begins, in memory."""
    return States(record_types(type(plan.method)).client) if states is None else states


def side_by_side_limit(plan: Plan) -> int:
    """How many clients one process may handle at once."""
    size = max(sum(t.numel() * t.element_size() for t in m.state_dict().values()) for m in plan.models)
    return max(1, min(TOGETHER, MEMORY // max(size, 1)))


def balanced(jobs: Sequence[Job], plan: Plan, workers: int) -> list[list[Job]]:
    """Jobs in groups of about equal work, the heaviest group first, so that no worker waits at the end of a round.

    Each job, the longest first, joins the group that has least to do; there are some groups more than workers.
    """
    if not jobs:
        return []
    count = min(len(jobs), max(4 * workers, -(-len(jobs) // side_by_side_limit(plan))))
    groups: list[tuple[int, int, list[Job]]] = [(0, k, []) for k in range(count)]
    for n, job in sorted(((_work(plan, job), job) for job in jobs), key=lambda pair: (-pair[0], pair[1].client)):
        total, k, group = heapq.heappop(groups)
        heapq.heappush(groups, (total + n, k, [*group, job]))
    return [group for _, _, group in sorted(groups, key=lambda g: (-g[0], g[1]))]


def _work(plan: Plan, job: Job) -> int:
    train, val, test = plan.data.sizes(job.client)
    return 1 + (train if job.kind in ("fit", "idle") else val + test)
