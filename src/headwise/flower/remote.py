"""An executor whose clients are at nodes elsewhere; the same bits as `Serial`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from ..config import Experiment
from ..engine.clock import Clock
from ..engine.plan import Plan
from ..engine.state import States
from ..engine.worker import Answer, Job
from ..errors import ClientError
from ..method import record_types
from .states import SiteStates, digest_of
from .wire import Link, Lost, Order, Parcel, Visit, pack_order, unpack_report

ATTEMPTS = 3  # jobs without an answer are sent again over a new link this often


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
        opened: Callable[[], Link],
        memory: Memory,
        *,
        workers: int = 1,
    ) -> None:
        self._types = record_types(type(plan.method))
        self._memory, self.states = memory, memory.states
        self.workers, self.clock = workers, Clock()
        self._experiment, self._run = json.dumps(experiment.plain()), run
        self._opened, self._link = opened, opened()

    def run(self, jobs: Iterable[Job]) -> Iterator[Answer]:
        """Do the jobs; those of a node that died are done again."""
        left, why = {job.client: job for job in jobs}, ""
        for attempt in range(ATTEMPTS):
            if attempt:
                self._link.close()
                self._link = self._opened()
            for reply in self._link.exchange(self._parcels(left.values())):
                if isinstance(reply, Lost):
                    why = reply.why
                    continue
                for answer in self._receive(reply):
                    del left[answer.client]
                    yield answer
            if not left:
                return
        raise ClientError(f"{ATTEMPTS} times there was no answer for the clients {sorted(left)}: {why}.")

    def close(self) -> None:
        """Leave the nodes."""
        self._link.close()

    def _parcels(self, jobs: Iterable[Job]) -> dict[int, Parcel]:
        begun = time.perf_counter()
        visits: dict[int, list[Visit]] = {}
        for job in jobs:
            visit = Visit(job, self._memory.digest(job.client))
            visits.setdefault(self._link.node_of(job.client), []).append(visit)
        parcels = {node: pack_order(Order(self._run, self._experiment, those)) for node, those in visits.items()}
        self.clock.add({"transport": time.perf_counter() - begun})
        return parcels

    def _receive(self, parcel: Parcel) -> Iterator[Answer]:
        report = unpack_report(parcel, self._types)
        self.clock.add(report.seconds)
        self.clock.memory[report.process] = report.memory
        for answer, digest in report.answers:
            if digest:
                self._memory.took(answer.client, digest)
            yield answer
