"""An executor whose clients are on remote nodes; bit for bit the same results as `Serial`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from ...contract.method import record_types
from ...disk.files import digest
from ...engine.client.jobs import Answer, Job, report_failure
from ...engine.client.state import States
from ...engine.host.clock import Clock
from ...engine.plan import Plan
from ...errors import ClientError
from ...records import RecordError
from ..states import SiteStates
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
"""times a job is sent before the run stops for lack of an answer"""
START = 60.0
"""seconds a node gets to start, on top of the deadline of each of its clients"""

Note = Callable[[dict[str, Any]], None]
"""receives a row about each node's reply"""


class StateIndex(Protocol):
    """What the server knows of its clients' states."""

    states: States

    def digest(self, client: int) -> str:
        """The digest of the state accepted last; empty if there is none."""
        ...

    def accept(self, client: int, digest: str) -> None:
        """Take this state as the client's newest."""
        ...


class LocalCopies:
    """Copies of states from nodes on this machine, so that run folders look the same for all engines."""

    def __init__(self, states: States, kept: SiteStates) -> None:
        self.states = states
        self._kept = kept
        self._digests: dict[int, str] = {}

    def digest(self, client: int) -> str:
        if client not in self._digests:
            data = self.states.encode(client)
            self._digests[client] = "" if data is None else digest(data)
        return self._digests[client]

    def accept(self, client: int, digest: str) -> None:
        data = self._kept.take(client, digest)
        if data is not None:
            self.states[client] = data
            self._digests[client] = digest


class Remote:
    """Sends each node one message with the jobs of all its clients."""

    def __init__(
        self,
        plan: Plan,
        experiment: str,
        run: str,
        link: Link,
        index: StateIndex,
        *,
        workers: int = 1,
        note: Note = lambda row: None,
    ) -> None:
        self.workers = workers
        self.clock = Clock()
        self.states = index.states
        self._plan = plan
        self._types = record_types(type(plan.method))
        self._faults = plan.experiment.faults
        self._experiment = experiment
        self._run = run
        self._link = link
        self._index = index
        self._note = note
        self._lost: dict[int, Lost] = {}
        """clients whose last job got no answer"""

    def run(self, jobs: Iterable[Job]) -> Iterator[Answer]:
        """Under the policy stop, lost jobs are sent again up to `ATTEMPTS` times; else they count as unanswered."""
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
            raise ClientError(f"clients {sorted(left)} gave no answer in {ATTEMPTS} attempts: {why}.")
        for job in left.values():
            lost = self._lost[job.client]
            yield report_failure(job, lost.reason, f"client {job.client} gave no answer: {lost.why}.")

    def close(self) -> None:
        self._link.close()

    def _ask(self, jobs: dict[int, Job]) -> Iterator[Answer]:
        """Send each node its order; yield the answers that come."""
        site_jobs: dict[int, list[SiteJob]] = {}
        for client, job in jobs.items():
            node = self._link.node_of(client)
            if node is None:
                self._lost[client] = self._lost.get(client, Lost("its site is not connected"))
            else:
                site_jobs.setdefault(node, []).append(SiteJob(job, self._index.digest(client)))
        if self._plan.experiment.secure.sums and next(iter(jobs.values())).kind == "fit":
            missing = len(jobs) - sum(map(len, site_jobs.values()))
            useless = missing and self._faults.reaction == "stop"  # a sum without them would be thrown away
            if site_jobs and not useless:
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
                    yield report_failure(site_job.job, "refused", str(error))
                continue
            note(next((a.failure.detail for a, _ in report.answers if a.failure), None))
            yield from self._take(report.answers)

    def _ask_masked(self, jobs: dict[int, Job], site_jobs: dict[int, list[SiteJob]]) -> Iterator[Answer]:
        """`_ask` in the stages of a masked sum: yields nothing if the sum stays closed.

        Once it is open, nobody is asked again: a second sum, over few sites, would tell too much.
        """
        from ..secagg.opening import MaskedRound  # imported here because it needs Flower

        masked = MaskedRound(self._plan, self._run, self._experiment, site_jobs)
        try:
            exchange = partial(self._exchange, site_jobs)
            answers = masked.play(exchange, lambda node, message: self._read(site_jobs[node], message))
        except UnopenedError as error:
            self._lost |= dict.fromkeys(jobs, Lost(str(error)))
            return
        self._lost |= {v.job.client: lost for node, lost in masked.lost.items() for v in site_jobs[node]}
        self._lost |= {c: self._lost[c]._replace(reason="dropped") for c in jobs if c in self._lost}
        if masked.silent:
            self._link.renew([v.job.client for node in masked.silent for v in site_jobs[node]], patiently=False)
        for node, why in masked.refused.items():
            for site_job in site_jobs[node]:
                yield report_failure(site_job.job, "refused", why)
        yield from self._take(answers)

    def _exchange(
        self, site_jobs: Mapping[int, Sequence[SiteJob]], task: str, messages: Mapping[int, SiteMessage]
    ) -> Iterator[tuple[int, SiteMessage | Lost, Callable[[str | None], None]]]:
        """Send the messages; yield each reply with a function that logs it, with or without a failure."""
        begun = time.perf_counter()
        deadline = self._faults.deadline
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
        """A node's report; a `RecordError` if it does not match the order."""
        report = unpack_report(message, self._types)
        order = sorted((job.client, job.kind, job.t) for job, _ in site_jobs)
        if sorted((a.client, a.kind, a.t) for a, _ in report.answers) != order:
            raise RecordError("this report does not match the order")
        for answer, _ in report.answers:
            known = 1 if self._plan.privacy.hides_sizes else self._plan.data.sizes(answer.client)[0]
            if known and answer.n != known:  # 0 of a site that was not here when the run began
                raise RecordError(f"client {answer.client} reports {answer.n} samples, but its site announced {known}")
        self.clock.add(report.seconds)
        self.clock.memory[report.process] = report.memory
        return report

    def _take(self, answers: Iterable[tuple[Answer, str]]) -> Iterator[Answer]:
        """Accept these answers, and the states that come with them."""
        for answer, state in answers:
            if state:
                self._index.accept(answer.client, state)
            yield answer
