"""An executor whose clients are at nodes elsewhere; the same bits as `Serial`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from ..config import Experiment
from ..engine.clock import Clock
from ..engine.plan import Plan
from ..engine.state import States
from ..engine.worker import Answer, Job, unanswered
from ..errors import ClientError
from ..method import record_types
from ..records import RecordError
from .states import SiteStates, digest_of
from .wire import Link, Lost, Order, Parcel, Visit, pack_order, unpack_report

ATTEMPTS = 3
"""jobs without an answer are sent again this often, where the run would otherwise end"""
START = 60.0
"""seconds that a node has to begin, beside those that each of its clients may take"""

Note = Callable[[dict[str, Any]], None]
"""is told what each node did"""


class Memory(Protocol):
    """What the server remembers of the states that clients have."""

    states: States

    def digest(self, client: int) -> str:
        """The state that was taken last; empty if there was none."""
        ...

    def took(self, client: int, digest: str) -> None:
        """From now on it is this one."""
        ...


class Copies:
    """For nodes on this machine, whose folder can be read: the states themselves, so that run folders are all alike."""

    def __init__(self, states: States, kept: SiteStates) -> None:
        self.states, self._kept = states, kept
        self._digests: dict[int, str] = {}

    def digest(self, client: int) -> str:
        """That of the copy."""
        if client not in self._digests:
            data = self.states.encoded(client)
            self._digests[client] = "" if data is None else digest_of(data)
        return self._digests[client]

    def took(self, client: int, digest: str) -> None:
        """Copy it."""
        data = self._kept.take(client, digest)
        if data is not None:
            self.states[client], self._digests[client] = data, digest


class Remote:
    """One message for each node, with the jobs of all of its clients."""

    def __init__(
        self,
        plan: Plan,
        experiment: Experiment,
        run: str,
        link: Link,
        memory: Memory,
        *,
        workers: int = 1,
        note: Note = lambda row: None,
    ) -> None:
        self._types, self._faults = record_types(type(plan.method)), plan.faults
        self._memory, self.states = memory, memory.states
        self.workers, self.clock = workers, Clock()
        self._experiment, self._run = json.dumps(experiment.plain()), run
        self._link, self._note = link, note
        self._lost: dict[int, Lost] = {}
        """clients that gave no answer when they were last asked"""

    def run(self, jobs: Iterable[Job]) -> Iterator[Answer]:
        """Do the jobs. What a node loses is asked for again where the run would end; else the run's policy decides."""
        left = {job.client: job for job in jobs}
        stops = self._faults.policy == "stop"
        for _ in range(ATTEMPTS if stops else 1):
            if again := sorted(c for c in left if c in self._lost):
                self._link.renew(again, patiently=self._faults.policy != "skip")
            for answer in self._ask(left):
                del left[answer.client]
                self._lost.pop(answer.client, None)
                yield answer
            if not left:
                return
        if stops:
            why = next(iter(self._lost.values())).why
            raise ClientError(f"{ATTEMPTS} times there was no answer for the clients {sorted(left)}: {why}.")
        for job in left.values():
            lost = self._lost[job.client]
            yield unanswered(job, lost.reason, f"client {job.client} gave no answer: {lost.why}.")

    def close(self) -> None:
        """Leave the nodes."""
        self._link.close()

    def _ask(self, jobs: dict[int, Job]) -> Iterator[Answer]:
        """Send every node its order; the answers of those that give one."""
        visits: dict[int, list[Visit]] = {}
        for client, job in jobs.items():
            node = self._link.node_of(client)
            if node is None:
                self._lost[client] = self._lost.get(client, Lost("its site is not there"))
            else:
                visits.setdefault(node, []).append(Visit(job, self._memory.digest(client)))
        begun = time.perf_counter()
        orders = {node: pack_order(Order(self._run, self._experiment, v)) for node, v in visits.items()}
        self.clock.add({"transport": time.perf_counter() - begun})
        most, deadline = max(map(len, visits.values()), default=0), self._faults.deadline
        for node, reply in self._link.exchange(orders, None if deadline is None else START + deadline * most):
            asked = {visit.job.client: visit.job for visit in visits[node]}
            row = {"round": next(iter(asked.values())).t, "task": next(iter(asked.values())).task, "node": node}
            row |= {"clients": sorted(asked), "seconds": round(time.perf_counter() - begun, 3)}
            row |= {"bytes_down": orders[node].size, "bytes_up": 0 if isinstance(reply, Lost) else reply.size}
            if isinstance(reply, Lost):
                self._lost |= dict.fromkeys(asked, reply)
                self._note({**row, "failure": reply.why})
                continue
            answers = list(self._receive(asked, reply))
            said = next((a.failure.detail for a in answers if a.failure), None)
            self._note({**row, "failure": said} if said else row)
            yield from answers

    def _receive(self, asked: dict[int, Job], parcel: Parcel) -> Iterator[Answer]:
        """A node's answers, if they are what it was asked for."""
        try:
            report = unpack_report(parcel, self._types)
            said = {answer.client: (answer, digest) for answer, digest in report.answers}
            wanted = {c: (job.task, job.t) for c, job in asked.items()}
            if {c: (a.task, a.t) for c, (a, _) in said.items()} != wanted or len(said) < len(report.answers):
                raise RecordError("this report does not answer what was asked")
        except (ClientError, RecordError) as error:
            if self._faults.policy == "stop":
                raise ClientError(str(error)) from error
            for job in asked.values():
                yield unanswered(job, "refused", str(error))
            return
        self.clock.add(report.seconds)
        self.clock.memory[report.process] = report.memory
        for answer, digest in said.values():
            if digest:
                self._memory.took(answer.client, digest)
            yield answer
