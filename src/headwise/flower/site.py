"""A site: takes an order, lets its clients do their jobs, keeps their states, reports."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ..config import experiment_from
from ..engine.clock import peak_memory
from ..engine.executors.serial import Serial
from ..engine.plan import Plan
from ..engine.process import one_thread
from ..engine.state import States
from ..errors import HeadwiseError, RunError, nearest
from ..method import record_types
from ..plans import make_plan
from ..records import RecordError
from .states import SiteStates
from .wire import Order, Parcel, Report, experiment_in, pack_error, pack_report, unpack_order


@dataclass(frozen=True)
class Site:
    """Where a site has its data and keeps its clients' states."""

    folder: Path
    data_dir: Path
    clients: tuple[int, ...] | None = None
    """those that live here; none: any"""
    methods: tuple[str, ...] | None = None
    """those that may run here; none: any, and files of one's own"""
    largest: int | None = None
    """bytes of a message, at most"""

    def answer(self, parcel: Parcel) -> Parcel:
        """Do what a message asks; a mistake is a report, too."""
        try:
            self._check(parcel)
            plan = _plan(experiment_in(parcel), self.data_dir)
            order = unpack_order(parcel, record_types(type(plan.method)))
            return pack_report(self._do(plan, order))
        except (HeadwiseError, RecordError) as error:
            return pack_error(error)

    def _check(self, parcel: Parcel) -> None:
        """Refuse what this site does not allow, before anything of it is built."""
        size = len(parcel.text) + sum(map(len, parcel.records))
        if self.largest is not None and size > self.largest:
            raise RunError(f"this site takes messages of {self.largest:,} bytes at most, but this one has {size:,}.")
        if self.methods is None:
            return
        asked = experiment_from(json.loads(experiment_in(parcel)))
        name = asked.method.name.partition("@")[0]
        if name not in self.methods:
            raise RunError(f"this site does not allow the method {name!r}: {nearest(name, self.methods)}")
        for choice in (
            asked.data,
            asked.partition,
            *asked.model,
            *([asked.server_model] if asked.server_model else []),
        ):
            if choice.name.endswith(".py"):
                raise RunError(f"this site runs its own Headwise only, not the file {choice.name!r}.")

    def _do(self, plan: Plan, order: Order) -> Report:
        kept = SiteStates(self.folder, order.run)
        states = States(record_types(type(plan.method)).client)
        visits = {visit.job.client: visit for visit in order.visits}
        if self.clients is not None and (strange := sorted(set(visits) - set(self.clients))):
            raise RunError(f"this site does not have the clients {strange}.")
        for client, visit in visits.items():
            if (data := kept.take(client, visit.state)) is not None:
                states[client] = data
        executor = Serial(plan, states)
        with one_thread():
            answers = list(executor.run(visit.job for visit in order.visits))
        executor.clock.to("transport")
        new: dict[int, str] = {}
        for client, (job, before) in visits.items():
            if job.task in ("fit", "idle") and (data := states.encoded(client)) is not None:
                new[client] = kept.put(client, job.t, data, before)
        executor.clock.stop()
        done = [(answer, new.get(answer.client, "")) for answer in answers]
        return Report(done, dict(executor.clock.seconds), os.getpid(), peak_memory())


@lru_cache(maxsize=1)
def _plan(experiment: str, data_dir: Path) -> Plan:
    """Built once in each process; the next message is most often of the same run."""
    return make_plan(experiment_from(json.loads(experiment)), data_dir).plan
