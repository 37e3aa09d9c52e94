"""A site: takes an order, lets its clients do their jobs, keeps their states, reports."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from ..config import Experiment, experiment_from
from ..data.federated import Clients
from ..engine.clock import peak_memory
from ..engine.executors.serial import Serial
from ..engine.plan import Plan
from ..engine.process import one_thread
from ..engine.state import States
from ..engine.worker import Answer
from ..errors import HeadwiseError, RunError
from ..jsontext import to_json
from ..method import record_types
from ..plans import make_plan, plan_for
from ..records import Record, RecordError, encode, pack
from .facts import own_data, tell
from .nodes import Introduction
from .policy import SiteSettings, check_privacy, permitted, read_site
from .stages import pack_said, stage_in
from .states import SiteStates
from .wire import Order, Parcel, Report, Visit, experiment_in, pack_error, pack_report, unpack_order

if TYPE_CHECKING:
    from .masking import Masking


class Ground(Protocol):
    """What stands behind a site: its data, and what it allows."""

    def plan(self, experiment: str) -> Plan:
        """What this experiment comes to here; whatever is not allowed is refused."""
        ...

    def admit(self, size: int) -> None:
        """Refuse a message of so many bytes, or let it be read."""
        ...

    def expect(self, clients: Sequence[int]) -> None:
        """Refuse clients that are not here."""
        ...

    def check(self, visits: list[Visit], kept: SiteStates) -> None:
        """Refuse what must not even be begun."""
        ...

    def leaving(self, plan: Plan, visit: Visit, answer: Answer, before: Record | None, after: Record | None) -> Answer:
        """An answer as it may leave, or an error."""
        ...


@dataclass(frozen=True)
class Site:
    """Where clients' states are kept, on what ground."""

    folder: Path
    ground: Ground
    exports: bool = False
    """whether what personal models are made of is kept beside the states"""

    def answer(self, parcel: Parcel) -> Parcel:
        """Do what a message asks; a mistake is a report, too."""
        try:
            self.ground.admit(parcel.size)
            plan = self.ground.plan(experiment_in(parcel))
            if stage := stage_in(parcel):
                run, asked = stage
                self.ground.expect(asked.clients)
                return pack_said(_masking(plan, SiteStates(self.folder, run)).answer(asked))
            order = unpack_order(parcel, record_types(type(plan.method)))
            return pack_report(self._do(plan, order))
        except (HeadwiseError, RecordError) as error:
            return pack_error(error)

    def _do(self, plan: Plan, order: Order) -> Report:
        kept = SiteStates(self.folder, order.run)
        self.ground.check(list(order.visits), kept)
        masking = None
        if order.sealed is not None or (plan.secure.sums and any(visit.job.task == "fit" for visit in order.visits)):
            masking = _masking(plan, kept)
            masking.begun(order)
        states = States(record_types(type(plan.method)).client)
        visits = {visit.job.client: visit for visit in order.visits}
        for client, visit in visits.items():
            if (data := kept.take(client, visit.state)) is not None:
                states[client] = data
        before = {c: states[c].me for c in states}
        executor = Serial(plan, states)
        with one_thread():
            done = list(executor.run(visit.job for visit in order.visits))
        after = {c: states[c].me for c in states}
        if self.exports:
            kept.remember(order.experiment)
            for job, _ in order.visits:
                if job.task != "global":
                    kept.put_download(job.client, encode(job.down))
        answers = [
            self.ground.leaving(plan, visits[a.client], a, before.get(a.client), after.get(a.client)) for a in done
        ]
        executor.clock.to("transport")
        new: dict[int, str] = {}
        for answer in answers:
            job, state = visits[answer.client]
            if answer.failure is None and job.task in ("fit", "idle") and (data := states.encoded(job.client)):
                new[job.client] = kept.put(job.client, job.t, data, state)
        named, masked = [(answer, new.get(answer.client, "")) for answer in answers], None
        if masking is not None:
            named, masked = masking.mask(order, named)
        executor.clock.stop()
        return Report(named, dict(executor.clock.seconds), os.getpid(), peak_memory(), masked)


@dataclass(frozen=True)
class Simulated:
    """The ground of a simulation's nodes, which trust the run that made them."""

    data_dir: Path

    def plan(self, experiment: str) -> Plan:
        """As in one process."""
        return _whole(experiment, self.data_dir)

    def admit(self, size: int) -> None:
        """Nothing is too large."""

    def expect(self, clients: Sequence[int]) -> None:
        """Any node can have any client."""

    def check(self, visits: list[Visit], kept: SiteStates) -> None:
        """Nothing is refused."""

    def leaving(self, plan: Plan, visit: Visit, answer: Answer, before: Record | None, after: Record | None) -> Answer:
        """As it is."""
        return answer


@dataclass(frozen=True)
class Real:
    """The ground of a site: its own data, and its own rules."""

    site: SiteSettings
    home: Path
    """the folder of site.toml"""

    def plan(self, experiment: str) -> Plan:
        """On the site's own data only."""
        return _own(self.site, self.home, experiment)

    def admit(self, size: int) -> None:
        """None that is larger than it may be."""
        most = self.site.allow.largest * 10**6
        if size > most:
            raise RunError(f"{self.site.name} takes messages of {most:,} bytes at most, but this one has {size:,}.")

    def expect(self, clients: Sequence[int]) -> None:
        """Its own only."""
        if strange := sorted(set(clients) - {c.id for c in self.site.clients}):
            raise RunError(f"{self.site.name} does not have the clients {strange}.")

    def check(self, visits: list[Visit], kept: SiteStates) -> None:
        """Its own clients only, and under privacy no round twice."""
        self.expect([visit.job.client for visit in visits])
        if len({visit.job.client for visit in visits}) < len(visits):
            raise RunError(f"{self.site.name} takes one job for each client at a time.")
        if self.site.allow.epsilon is None:
            return
        for job, _ in visits:
            if job.task == "fit" and any(v.t >= job.t for v in kept.versions(job.client)):
                raise RunError(f"{self.site.name} has answered round {job.t} for client {job.client} already.")

    def leaving(self, plan: Plan, visit: Visit, answer: Answer, before: Record | None, after: Record | None) -> Answer:
        """Without scores if they must not leave; never with what the client keeps to itself."""
        if answer.up is not None:
            known = {_bits(t) for t in pack(visit.job.down).tensors.values()}
            known |= {_bits(t) for m in plan.models for t in m.state().values()}
            sent = {_bits(t): name for name, t in pack(answer.up).tensors.items()}
            for name, t in _private(plan, before, after):
                if _bits(t) in sent.keys() - known:
                    raise RunError(f"{self.site.name} lets no {name!r} leave: it is private, but stands in an upload.")
        return answer if self.site.allow.scores else replace(answer, test=None, val=None)

    def look(self, experiment: Experiment | None) -> Clients:
        """The site's data; with an experiment, only if it can run here."""
        if experiment is not None:
            return self.plan(to_json(experiment.plain())).data
        last = max(c.id for c in self.site.clients)
        return own_data(self.site, self.home, Experiment(clients=last + 1)).clients

    def introduce(self, experiment: str) -> Parcel:
        """Who this site is, what it tells about its data, or why it won't take part."""
        site, told, refusal = self.site, (), None
        try:
            plan = self.plan(experiment)
            told = tuple(tell(site, plan.data, plan.privacy))
        except HeadwiseError as error:
            refusal = str(error)
        said = Introduction(site.name, tuple(c.id for c in site.clients), told, refusal)
        return Parcel(to_json(asdict(said)), [])


def open_site(path: Path) -> tuple[Site, Real]:
    """The site that this file describes."""
    home, settings = path.absolute().parent, read_site(path)
    ground = Real(settings, home)
    return Site(home / settings.states, ground, exports=True), ground


def _masking(plan: Plan, kept: SiteStates) -> Masking:
    from .masking import Masking  # here, because it needs Flower, which all else at a site does without

    return Masking(plan, kept)


def _private(plan: Plan, *records: Record | None) -> Iterator[tuple[str, Tensor]]:
    """What a client keeps to itself; constants are no secrets."""
    for record in records:
        for name, t in pack(record).tensors.items() if record is not None else ():
            field = name.split("/")[0]
            if field not in type(plan.method).leaves and t.numel() and bool((t != t.flatten()[0]).any()):
                yield field, t


def _bits(t: Tensor) -> tuple[str, bytes]:
    return str(t.dtype), t.detach().cpu().contiguous().numpy().tobytes()


@lru_cache(maxsize=1)
def _whole(experiment: str, data_dir: Path) -> Plan:
    """Built once in each process; the next message is most often of the same run."""
    return make_plan(experiment_from(json.loads(experiment)), data_dir).plan


@lru_cache(maxsize=8)
def _own(site: SiteSettings, home: Path, experiment: str) -> Plan:
    asked = permitted(site, home, experiment)
    plan = plan_for(asked, own_data(site, home, asked))
    check_privacy(site, asked, plan)
    return plan
