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
from ..transport.messages import (
    Link,
    Lost,
    Order,
    Report,
    SiteJob,
    SiteMessage,
    UnopenedError,
    pack_order,
    unpack_report,
)

ATTEMPTS = 3
"""jobs without an answer are sent again this often, where the run would otherwise end"""
START = 60.0
"""seconds that a node has to begin, beside those that each of its clients may take"""

Note = Callable[[dict[str, Any]], None]
"""is told what each node did"""


class StateIndex(Protocol):
    """What the server remembers of the states that clients have."""

    states: States

    def digest(self, client: int) -> str:
        """The state that was taken last; empty if there was none."""
        ...

    def took(self, client: int, digest: str) -> None:
        """From now on it is this one."""
        ...


class LocalCopies:
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
        memory: StateIndex,
        *,
        workers: int = 1,
        note: Note = lambda row: None,
    ) -> None:
        self._plan, self._types, self._faults = plan, record_types(type(plan.method)), plan.experiment.faults
        self._memory, self.states = memory, memory.states
        self.workers, self.clock = workers, Clock()
        self._experiment, self._run = experiment, run
        self._link, self._note = link, note
        self._lost: dict[int, Lost] = {}
        """clients that gave no answer when they were last asked"""

    def run(self, jobs: Iterable[Job]) -> Iterator[Answer]:
        """Do the jobs. What a node loses is asked for again where the run would end; else the run's policy decides."""
        left = {job.client: job for job in jobs}
        stops = self._faults.reaction == "stop"
        for _ in range(ATTEMPTS if stops else 1):
            if again := sorted(c for c in left if c in self._lost):
                self._link.renew(again, patiently=self._faults.reaction != "skip")
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
        site_jobs: dict[int, list[SiteJob]] = {}
        for client, job in jobs.items():
            node = self._link.node_of(client)
            if node is None:
                self._lost[client] = self._lost.get(client, Lost("its site is not there"))
            else:
                site_jobs.setdefault(node, []).append(SiteJob(job, self._memory.digest(client)))
        if self._plan.experiment.secure.sums and next(iter(jobs.values())).kind == "fit":
            missing = len(jobs) - sum(map(len, site_jobs.values()))
            if site_jobs and not (missing and self._faults.reaction == "stop"):  # else a sum would be opened in vain
                yield from self._ask_masked(jobs, site_jobs)
            return
        begun = time.perf_counter()
        orders = {node: pack_order(Order(self._run, self._experiment, v)) for node, v in site_jobs.items()}
        self.clock.add({"transport": time.perf_counter() - begun})
        for node, reply, note in self._exchange(site_jobs, next(iter(jobs.values())).kind, orders):
            if isinstance(reply, Lost):
                self._lost |= {site_job.job.client: reply for site_job in site_jobs[node]}
                continue
            try:
                report = self._read(site_jobs[node], reply)
            except (ClientError, RecordError) as error:
                note(str(error))
                if self._faults.reaction == "stop":
                    raise ClientError(str(error)) from error
                for site_job in site_jobs[node]:
                    yield unanswered(site_job.job, "refused", str(error))
                continue
            note(next((a.failure.detail for a, _ in report.answers if a.failure), None))
            yield from self._take(report.answers)

    def _ask_masked(self, jobs: dict[int, Job], site_jobs: dict[int, list[SiteJob]]) -> Iterator[Answer]:
        """The same in the stages of a masked sum: all answers that count, or none where the sum is not opened.

        Once it is opened nobody is asked again: a second sum, over few sites, would tell too much.
        """
        from ..secagg.opening import MaskedRound  # here, because it needs Flower

        masked = MaskedRound(self._plan, self._run, self._experiment, site_jobs)
        try:
            answers = masked.play(
                partial(self._exchange, site_jobs), lambda n, message: self._read(site_jobs[n], message)
            )
        except UnopenedError as error:
            self._lost |= dict.fromkeys(jobs, Lost(str(error)))
            return
        self._lost |= {v.job.client: lost for node, lost in masked.lost.items() for v in site_jobs[node]}
        self._lost |= {c: self._lost[c]._replace(reason="dropped") for c in jobs if c in self._lost}
        if masked.silent:
            self._link.renew([v.job.client for node in masked.silent for v in site_jobs[node]], patiently=False)
        for node, why in masked.refused.items():
            for site_job in site_jobs[node]:
                yield unanswered(site_job.job, "refused", why)
        yield from self._take(answers)

    def _exchange(
        self, site_jobs: Mapping[int, Sequence[SiteJob]], task: str, messages: Mapping[int, SiteMessage]
    ) -> Iterator[tuple[int, SiteMessage | Lost, Callable[[str | None], None]]]:
        """Send nodes their messages; each reply with a function that takes down what was wrong with it."""
        begun, deadline = time.perf_counter(), self._faults.deadline
        most = max((len(site_jobs[node]) for node in messages), default=0)
        for node, reply in self._link.exchange(messages, None if deadline is None else START + deadline * most):
            jobs = [site_job.job for site_job in site_jobs[node]]
            row = {"round": jobs[0].t, "task": task, "node": node, "clients": sorted(job.client for job in jobs)}
            row |= {"seconds": round(time.perf_counter() - begun, 3), "bytes_down": messages[node].size}
            row |= {"bytes_up": 0 if isinstance(reply, Lost) else reply.size}

            def note(failure: str | None, row: dict[str, Any] = row) -> None:
                self._note({**row, "failure": failure} if failure else row)

            if isinstance(reply, Lost):
                note(reply.why)
            yield node, reply, note

    def _read(self, site_jobs: Sequence[SiteJob], message: SiteMessage) -> Report:
        """A node's report, if it is what it was asked for."""
        report = unpack_report(message, self._types)
        said = {answer.client: (answer.kind, answer.t) for answer, _ in report.answers}
        if said != {job.client: (job.kind, job.t) for job, _ in site_jobs} or len(said) < len(report.answers):
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
