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
from ..host import Clock
from ..plan import Plan

MOST = 128
"""clients in a group, at most"""
MEMORY = 64 * 2**20
"""bytes of models in the answers of a group, at most"""


class Executor(Protocol):
    """Where clients live: in this process, in a pool of processes, on other machines."""

    workers: int
    """clients handled at the same time"""
    states: States
    """the states of clients that have trained, where they are kept here"""
    clock: Clock
    """what all workers together spent their time on"""

    def run(self, jobs: Iterable[Job]) -> Iterator[Answer]:
        """Do the jobs, in any order; training also replaces the client's state."""
        ...

    def close(self) -> None: ...


class Setup(NamedTuple):
    plan: Plan
    states: States
    """where the clients continue from"""
    engine: Engine
    workers: int
    """clients to handle at the same time, resolved from `engine.workers`"""
    experiment: str
    """as JSON, so that another process or machine can build the same plan"""
    rebuild: Callable[[Clients], Plan]
    """builds the plan in another process that already has the data"""
    data_dir: Path
    folder: Path
    """the run's folder"""


def collect(executor: Executor, jobs: list[Job], tell: Observer) -> dict[int, Answer]:
    """All answers in client order, without those of clients that failed."""
    answers: dict[int, Answer] = {}
    for a in executor.run(jobs):
        if a.failure:
            tell(ClientFailed(a.t, a.client, a.kind, *a.failure))
            continue
        answers[a.client] = a
        tell(ClientDone(a.t, a.client, a.kind, a.samples))
    return dict(sorted(answers.items()))


def states_of(plan: Plan, states: States | None) -> States:
    """These states, or empty ones in memory for a new run."""
    return States(record_types(type(plan.method)).client) if states is None else states


def balance(jobs: Sequence[Job], plan: Plan, workers: int) -> list[list[Job]]:
    """Divide jobs into groups of about equal work, heaviest first, so that no worker waits at the end of a round.

    Each job, longest first, joins the group with the least work; there are a few more groups than workers. A group's
    answers come all at once, so their models must fit into memory.
    """
    if not jobs:
        return []
    model = max(sum(t.nbytes for t in m.state_dict().values()) for m in plan.models)
    limit = max(1, min(MOST, MEMORY // max(model, 1)))
    count = min(len(jobs), max(4 * workers, -(-len(jobs) // limit)))
    groups: list[tuple[int, int, list[Job]]] = [(0, k, []) for k in range(count)]
    for n, job in sorted(((_work(plan, job), job) for job in jobs), key=lambda pair: (-pair[0], pair[1].client)):
        total, k, group = heapq.heappop(groups)
        heapq.heappush(groups, (total + n, k, [*group, job]))
    return [group for _, _, group in sorted(groups, key=lambda g: (-g[0], g[1]))]


def _work(plan: Plan, job: Job) -> int:
    train, val, test = plan.data.sizes(job.client)
    return 1 + (train if job.kind in ("fit", "idle") else val + test)
