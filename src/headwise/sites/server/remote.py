"""An executor whose clients are on remote nodes; bit for bit the same results as `Serial`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from ...contract.method import record_types
from ...disk.files import digest
from ...engine.client.jobs import Answer, Job, report_failure
from ...engine.client.state import States
from ...engine.host import Clock
from ...engine.plan import Plan
from ...errors import ClientError
from ...records import RecordError, nbytes
from ..secagg.round import MaskedRound, UnopenedError
from ..states import SiteStates
from ..transport.envelope import Lost, SiteMessage
from ..transport.messages import Order, Report, SiteJob, pack_order, unpack_report

T = TypeVar("T")

ATTEMPTS = 3
"""times a job is sent before the run stops for lack of an answer"""
MODELS = 10
"""models like its own that a client's reply may hold; the methods of Headwise send less than one"""
TEXT = 100_000
"""bytes of scores, failures, keys and shares in a reply, for each client and for each site of the round"""
START = 60.0
"""seconds a node gets to start, on top of the deadline of each of its clients"""

Note = Callable[[dict[str, Any]], None]
"""receives a row about each node's reply"""


class Link(Protocol):
    def node_of(self, client: int) -> int | None:
        """The node with this client; None if no node has claimed it yet."""
        ...

    def exchange(
        self, messages: Mapping[int, SiteMessage], seconds: float | None
    ) -> Iterator[tuple[int, SiteMessage | Lost]]:
        """Send each node its message, which expires after `seconds`; yield replies as they arrive."""
        ...

    def renew(self, clients: Sequence[int], patiently: bool) -> None:
        """After a loss, look for the nodes of these clients again; `patiently` also waits for them."""
        ...

    def close(self) -> None: ...


class StateIndex(Protocol):
    """The server's knowledge of its clients' states."""

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
        largest = max(sum(t.nbytes for t in network.state_dict().values()) for network in plan.networks)
        self._model_bytes = largest + 8 * plan.data.task.classes**2  # some methods send a row per class for each class
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
        for node, report in self._exchange(next(iter(jobs.values())).kind, orders, site_jobs, self._read):
            if not isinstance(report, Lost):
                yield from self._take(report.answers)
            elif report.reason != "refused":
                self._lost |= {site_job.job.client: report for site_job in site_jobs[node]}
            elif self._faults.reaction == "stop":
                raise ClientError(report.why)
            else:
                yield from (report_failure(site_job.job, "refused", report.why) for site_job in site_jobs[node])

    def _ask_masked(self, jobs: dict[int, Job], site_jobs: dict[int, list[SiteJob]]) -> Iterator[Answer]:
        """`_ask` in the stages of a masked sum: yields nothing if the sum stays closed.

        Once it is open, nobody is asked again: a second sum, over few sites, would reveal too much.
        """
        masked = MaskedRound(self._plan, self._run, self._experiment, site_jobs)
        try:
            answers = masked.play(self._exchange, self._read)
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
        self,
        task: str,
        messages: Mapping[int, SiteMessage],
        site_jobs: Mapping[int, Sequence[SiteJob]],
        read: Callable[[Sequence[SiteJob], SiteMessage], T],
    ) -> Iterator[tuple[int, T | Lost]]:
        """Send the messages; log each reply, and yield it as `read` understands it."""
        begun = time.perf_counter()
        deadline = self._faults.deadline
        most = max((len(site_jobs[node]) for node in messages), default=0)
        for node, reply in self._link.exchange(messages, None if deadline is None else START + deadline * most):
            jobs = [site_job.job for site_job in site_jobs[node]]
            row = {"round": jobs[0].t, "task": task, "node": node, "clients": sorted(job.client for job in jobs)}
            row |= {"seconds": round(time.perf_counter() - begun, 3), "bytes_down": messages[node].size}
            row |= {"bytes_up": 0 if isinstance(reply, Lost) else reply.size}
            try:
                if not isinstance(reply, Lost):
                    self._check_size(jobs, len(messages), reply)
                result = reply if isinstance(reply, Lost) else read(site_jobs[node], reply)
            except (ClientError, RecordError) as error:
                result = Lost(str(error), "refused")
            failure = result.why if isinstance(result, Lost) else None
            if isinstance(result, Report):
                failure = next((a.failure.detail for a, _ in result.answers if a.failure), None)
            self._note({**row, "failure": failure} if failure else row)
            yield node, result

    def _check_size(self, jobs: Sequence[Job], sites: int, reply: SiteMessage) -> None:
        """Refuse a reply, before it is parsed, that is far larger than what any method would send."""
        most = TEXT * (sites + len(jobs)) + sum(MODELS * (self._model_bytes + nbytes(job.down)) for job in jobs)
        if reply.size > most:
            raise RecordError(f"this reply has {reply.size:,} bytes, but at most {most:,} are accepted")

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
