"""What stands behind a site: its data, its rules and its ledger; or, in a simulation, all of the data and no rules."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from torch import Tensor

from ...app.prepare import plan_for, prepare
from ...data.federated import Clients
from ...disk.jsontext import to_json
from ...engine.client.jobs import Answer
from ...engine.plan import Plan
from ...errors import HeadwiseError, RunError
from ...records import Record, pack
from ...settings.experiment import Experiment, experiment_from
from ..facts import Introduction
from ..states import SiteStates
from ..transport.messages import Order, SiteJob, SiteMessage
from .ledger import Ledger
from .own_data import own_data, tell
from .signing import experiment_hash
from .site_file import SiteSettings, check_networks, check_privacy, permitted


class SitePolicy(Protocol):
    """What stands behind a site: its data, and what it allows."""

    def plan(self, experiment: str) -> Plan:
        """What this experiment comes to here; whatever is not allowed is refused."""
        ...

    def admit(self, size: int) -> None:
        """Refuse a message of so many bytes, or let it be read."""
        ...

    def expect(self, plan: Plan, clients: Sequence[int], rounds: Iterable[int]) -> None:
        """Refuse clients that are not here, one of them twice, and rounds that the run does not have."""
        ...

    def charge(self, plan: Plan, order: Order, kept: SiteStates) -> None:
        """Take down what the answers to this order will tell, before any of them is made; or refuse it."""
        ...

    def leaving(
        self, plan: Plan, site_job: SiteJob, answer: Answer, before: Record | None, after: Record | None
    ) -> Answer:
        """An answer as it may leave, or an error."""
        ...


@dataclass(frozen=True)
class SimulatedPolicy:
    """The policy of a simulation's nodes, which trust the run that made them."""

    data_dir: Path

    def plan(self, experiment: str) -> Plan:
        """As in one process."""
        return _whole(experiment, self.data_dir)

    def admit(self, size: int) -> None:
        """Nothing is too large."""

    def expect(self, plan: Plan, clients: Sequence[int], rounds: Iterable[int]) -> None:
        """Any node can have any client."""

    def charge(self, plan: Plan, order: Order, kept: SiteStates) -> None:
        """Nothing is kept."""

    def leaving(
        self, plan: Plan, site_job: SiteJob, answer: Answer, before: Record | None, after: Record | None
    ) -> Answer:
        """As it is."""
        return answer


@dataclass(frozen=True)
class OwnPolicy:
    """The policy of a site: its own data, and its own rules."""

    site: SiteSettings
    home: Path
    """the folder of site.toml"""

    def plan(self, experiment: str) -> Plan:
        """On the site's own data only."""
        return self._own(experiment)[0]

    def _own(self, experiment: str) -> tuple[Plan, str]:
        return _own(self.site, self.home, experiment)

    def admit(self, size: int) -> None:
        """None that is larger than it may be."""
        most = self.site.allow.largest * 10**6
        if size > most:
            raise RunError(f"{self.site.name} takes messages of {most:,} bytes at most, but this one has {size:,}.")

    def expect(self, plan: Plan, clients: Sequence[int], rounds: Iterable[int]) -> None:
        """Its own clients only, each once, and rounds from the first to the last of the experiment."""
        if strange := sorted(set(clients) - {c.id for c in self.site.clients}):
            raise RunError(f"{self.site.name} does not have the clients {strange}.")
        if len(set(clients)) < len(clients):
            raise RunError(f"{self.site.name} takes one job for each client at a time.")
        if beyond := sorted({t for t in rounds if not 1 <= t <= plan.experiment.rounds}):
            raise RunError(
                f"{self.site.name} is asked for round {beyond[0]}, but the rounds are 1 to {plan.experiment.rounds}."
            )

    def charge(self, plan: Plan, order: Order, kept: SiteStates) -> None:
        """In the site's own ledger."""
        jobs = [site_job.job for site_job in order.site_jobs]
        Ledger(self.site, self.home).charge(plan, self._own(order.experiment)[1], kept, jobs)

    def leaving(
        self, plan: Plan, site_job: SiteJob, answer: Answer, before: Record | None, after: Record | None
    ) -> Answer:
        """Without scores if they must not leave; never with what the client keeps to itself."""
        if answer.up is not None:
            known = {_bits(t) for t in pack(site_job.job.down).tensors.values()}
            known |= {_bits(t) for m in plan.models for t in m.state().values()}
            sent = {_bits(t): name for name, t in pack(answer.up).tensors.items()}
            for name, t in _private(plan, before, after):
                if _bits(t) in sent.keys() - known:
                    raise RunError(f"{self.site.name} lets no {name!r} leave: it is private, but stands in an upload.")
        return answer if self.site.allow.tells_scores else replace(answer, test=None, val=None)

    def look(self, experiment: Experiment | None) -> Clients:
        """The site's data; with an experiment, only if it can run here."""
        if experiment is not None:
            return self.plan(to_json(experiment.plain())).data
        last = max(c.id for c in self.site.clients)
        return own_data(self.site, self.home, Experiment(clients=last + 1)).clients()

    def introduce(self, experiment: str) -> SiteMessage:
        """Who this site is, what it tells about its data, or why it won't take part."""
        site, told, refusal = self.site, (), None
        try:
            plan, name = self._own(experiment)
            Ledger(site, self.home).check_left(plan, name)
            told = tuple(tell(site, plan.data, plan.privacy))
        except HeadwiseError as error:
            refusal = str(error)
        said = Introduction(site.name, tuple(c.id for c in site.clients), told, refusal)
        return SiteMessage(to_json(asdict(said)), [])


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
    return prepare(experiment_from(json.loads(experiment)), data_dir).plan


@lru_cache(maxsize=8)
def _own(site: SiteSettings, home: Path, experiment: str) -> tuple[Plan, str]:
    """The plan, and the hash by which the ledger knows the experiment."""
    asked = permitted(site, home, experiment)
    data = own_data(site, home, asked)
    check_networks(site, asked, data.task)
    plan = plan_for(asked, data)
    check_privacy(site, plan)
    return plan, experiment_hash(asked)
