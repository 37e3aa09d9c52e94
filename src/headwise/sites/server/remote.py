"""An executor whose clients are at nodes elsewhere; the same bits as `Serial`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from ...contract.method import record_types
from ...engine.client.jobs import Answer, Job, unanswered
from ...engine.client.state import States
from ...engine.host.clock import Clock
from ...engine.plan import Plan
from ...errors import ClientError
from ...records import RecordError
from ..states import SiteStates, digest_of
from ..transport.messages import Link, Lost, Order, Parcel, Report, UnopenedError, Visit, pack_order, unpack_report

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
        experiment: str,
        run: str,
        link: Link,
        memory: Memory,
        *,
        workers: int = 1,
        note: Note = lambda row: None,
    ) -> None:
        self._plan, self._types, self._faults = plan, record_types(type(plan.method)), plan.faults
        self._memory, self.states = memory, memory.states
        self.workers, self.clock = workers, Clock()
        self._experiment, self._run = experiment, run
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
        if self._plan.secure.sums and next(iter(jobs.values())).task == "fit":
            missing = len(jobs) - sum(map(len, visits.values()))
            if visits and not (missing and self._faults.policy == "stop"):  # else a sum would be opened in vain
                yield from self._ask_masked(jobs, visits)
            return
        begun = time.perf_counter()
        orders = {node: pack_order(Order(self._run, self._experiment, v)) for node, v in visits.items()}
        self.clock.add({"transport": time.perf_counter() - begun})
        for node, reply, note in self._exchange(visits, next(iter(jobs.values())).task, orders):
            if isinstance(reply, Lost):
                self._lost |= {visit.job.client: reply for visit in visits[node]}
                continue
            try:
                report = self._read(visits[node], reply)
            except (ClientError, RecordError) as error:
                note(str(error))
                if self._faults.policy == "stop":
                    raise ClientError(str(error)) from error
                for visit in visits[node]:
                    yield unanswered(visit.job, "refused", str(error))
                continue
            note(next((a.failure.detail for a, _ in report.answers if a.failure), None))
            yield from self._take(report.answers)

    def _ask_masked(self, jobs: dict[int, Job], visits: dict[int, list[Visit]]) -> Iterator[Answer]:
        """The same in the stages of a masked sum: all answers that count, or none where the sum is not opened.

        Once it is opened nobody is asked again: a second sum, over few sites, would tell too much.
        """
        from ..secagg.opening import MaskedRound  # here, because it needs Flower

        masked = MaskedRound(self._plan, self._run, self._experiment, visits)
        try:
            answers = masked.play(partial(self._exchange, visits), lambda n, parcel: self._read(visits[n], parcel))
        except UnopenedError as error:
            self._lost |= dict.fromkeys(jobs, Lost(str(error)))
            return
        self._lost |= {v.job.client: lost for node, lost in masked.lost.items() for v in visits[node]}
        self._lost |= {c: self._lost[c]._replace(reason="dropped") for c in jobs if c in self._lost}
        if masked.silent:
            self._link.renew([v.job.client for node in masked.silent for v in visits[node]], patiently=False)
        for node, why in masked.refused.items():
            for visit in visits[node]:
                yield unanswered(visit.job, "refused", why)
        yield from self._take(answers)

    def _exchange(
        self, visits: Mapping[int, Sequence[Visit]], task: str, parcels: Mapping[int, Parcel]
    ) -> Iterator[tuple[int, Parcel | Lost, Callable[[str | None], None]]]:
        """Send nodes their messages; each reply with a function that takes down what was wrong with it."""
        begun, deadline = time.perf_counter(), self._faults.deadline
        most = max((len(visits[node]) for node in parcels), default=0)
        for node, reply in self._link.exchange(parcels, None if deadline is None else START + deadline * most):
            jobs = [visit.job for visit in visits[node]]
            row = {"round": jobs[0].t, "task": task, "node": node, "clients": sorted(job.client for job in jobs)}
            row |= {"seconds": round(time.perf_counter() - begun, 3), "bytes_down": parcels[node].size}
            row |= {"bytes_up": 0 if isinstance(reply, Lost) else reply.size}

            def note(failure: str | None, row: dict[str, Any] = row) -> None:
                self._note({**row, "failure": failure} if failure else row)

            if isinstance(reply, Lost):
                note(reply.why)
            yield node, reply, note

    def _read(self, visits: Sequence[Visit], parcel: Parcel) -> Report:
        """A node's report, if it is what it was asked for."""
        report = unpack_report(parcel, self._types)
        said = {answer.client: (answer.task, answer.t) for answer, _ in report.answers}
        if said != {job.client: (job.task, job.t) for job, _ in visits} or len(said) < len(report.answers):
            raise RecordError("this report does not answer what was asked")
        self.clock.add(report.seconds)
        self.clock.memory[report.process] = report.memory
        return report

    def _take(self, answers: Iterable[tuple[Answer, str]]) -> Iterator[Answer]:
        """These answers count, and the states that come with them."""
        for answer, digest in answers:
            if digest:
                self._memory.took(answer.client, digest)
            yield answer
