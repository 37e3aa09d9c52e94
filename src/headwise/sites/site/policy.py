"""What a site allows: its own data, rules and ledger; in a simulation, all data and no rules."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from torch import Tensor

from ... import __version__
from ...app.prepare import plan_for, prepare
from ...data.federated import Clients
from ...disk.jsontext import to_json
from ...engine.client.jobs import Answer
from ...engine.plan import Plan
from ...errors import HeadwiseError, RunError
from ...records import Record, pack
from ...settings.choices import Choice
from ...settings.experiment import Experiment, experiment_from
from ..facts import Introduction, written_for_sites
from ..states import SiteStates
from ..transport.messages import Order, SiteJob, SiteMessage
from .ledger import Ledger
from .own_data import check_scale, own_data, sums_of, tell
from .signing import experiment_hash
from .site_file import SiteSettings, check_networks, check_privacy, permitted


class SitePolicy(Protocol):
    """Decides what a site does. All methods raise a `RunError` to refuse."""

    def plan(self, experiment: str) -> Plan:
        """The plan of this experiment (JSON) on the site's data."""
        ...

    def admit(self, size: int) -> None:
        """Check a message of `size` bytes before it is read."""
        ...

    def expect(self, plan: Plan, clients: Sequence[int], rounds: Iterable[int]) -> None:
        """Check that an order names clients of this site, each once, and rounds of the experiment."""
        ...

    def charge(self, plan: Plan, order: Order, kept: SiteStates) -> None:
        """Charge the privacy cost of this order before any client trains."""
        ...

    def leaving(
        self, plan: Plan, site_job: SiteJob, answer: Answer, before: Record | None, after: Record | None
    ) -> Answer:
        """The answer as it may leave."""
        ...


@dataclass(frozen=True)
class SimulatedPolicy:
    """For the nodes of a simulation, which trust the run that started them."""

    data_dir: Path

    def plan(self, experiment: str) -> Plan:
        return _whole(experiment, self.data_dir)

    def admit(self, size: int) -> None:
        """No limit."""

    def expect(self, plan: Plan, clients: Sequence[int], rounds: Iterable[int]) -> None:
        """Any node can serve any client."""

    def charge(self, plan: Plan, order: Order, kept: SiteStates) -> None:
        """No ledger."""

    def leaving(
        self, plan: Plan, site_job: SiteJob, answer: Answer, before: Record | None, after: Record | None
    ) -> Answer:
        return answer


@dataclass(frozen=True)
class OwnPolicy:
    """For a real site: its own data and its own rules."""

    site: SiteSettings
    home: Path
    """the folder of site.toml"""

    def plan(self, experiment: str) -> Plan:
        return self._own(experiment)[0]

    def _own(self, experiment: str) -> tuple[Plan, str, dict[int, str]]:
        return _own(self.site, self.home, experiment)

    def admit(self, size: int) -> None:
        most = self.site.allow.largest * 10**6
        if size > most:
            raise RunError(f"{self.site.name} accepts messages of at most {most:,} bytes, but this one has {size:,}.")

    def expect(self, plan: Plan, clients: Sequence[int], rounds: Iterable[int]) -> None:
        if strange := sorted(set(clients) - {c.id for c in self.site.clients}):
            raise RunError(f"{self.site.name} does not have the clients {strange}.")
        if len(set(clients)) < len(clients):
            raise RunError(f"{self.site.name} takes one job per client at a time.")
        if beyond := sorted({t for t in rounds if not 1 <= t <= plan.experiment.rounds}):
            raise RunError(
                f"{self.site.name} is asked for round {beyond[0]}, but the rounds are 1 to {plan.experiment.rounds}."
            )

    def charge(self, plan: Plan, order: Order, kept: SiteStates) -> None:
        jobs = [site_job.job for site_job in order.site_jobs]
        Ledger(self.site, self.home).charge(plan, self._own(order.experiment)[1], kept, jobs)

    def leaving(
        self, plan: Plan, site_job: SiteJob, answer: Answer, before: Record | None, after: Record | None
    ) -> Answer:
        """Drops scores that must not leave; refuses an upload that contains a private tensor."""
        if answer.up is not None:
            known = {_bits(t) for t in pack(site_job.job.down).tensors.values()}
            known |= {_bits(t) for m in plan.models for t in m.state().values()}
            sent = {_bits(t): name for name, t in pack(answer.up).tensors.items()}
            for name, t in _private(plan, before, after):
                if _bits(t) in sent.keys() - known:
                    raise RunError(f"{self.site.name} does not send {name!r}: it is private, but in the upload.")
        return answer if self.site.allow.tells_scores else replace(answer, test=None, val=None)

    def look(self, experiment: Experiment | None, *, download: bool = False) -> Clients:
        """The site's data; with an experiment, checks as well that it can run here."""
        if experiment is None or download:
            last = max(c.id for c in self.site.clients)
            asked = Experiment(clients=last + 1, data=Choice(self.site.data))
            found = own_data(self.site, self.home, asked, download=download, alone=True).clients()
            if experiment is None:
                return found
        return self.plan(written_for_sites(experiment)).data

    def introduce(self, experiment: str) -> SiteMessage:
        """An `Introduction`: what the site shares about its data, or why it refuses."""
        site, told, refusal = self.site, (), None
        try:
            plan, name, sums = self._own(experiment)
            Ledger(site, self.home).check_left(plan, name)
            told = tuple(tell(site, plan.data, plan.privacy, sums))
        except HeadwiseError as error:
            refusal = str(error)
        said = Introduction(site.name, tuple(c.id for c in site.clients), told, __version__, refusal)
        return SiteMessage(to_json(asdict(said)), [])


def _private(plan: Plan, *records: Record | None) -> Iterator[tuple[str, Tensor]]:
    """Tensors that must not leave; constant ones are not secret."""
    for record in records:
        for name, t in pack(record).tensors.items() if record is not None else ():
            field = name.split("/")[0]
            if field not in type(plan.method).leaves and t.numel() and bool((t != t.flatten()[0]).any()):
                yield field, t


def _bits(t: Tensor) -> tuple[str, bytes]:
    return str(t.dtype), t.detach().cpu().contiguous().numpy().tobytes()


@lru_cache(maxsize=1)
def _whole(experiment: str, data_dir: Path) -> Plan:
    """Cached: the next message is usually from the same run."""
    return prepare(experiment_from(json.loads(experiment)), data_dir).plan


def _own(site: SiteSettings, home: Path, experiment: str) -> tuple[Plan, str, dict[int, str]]:
    """The plan, the experiment's hash for the ledger, and the sums that may leave.

    Whether it may run here is checked each time.
    """
    asked = permitted(site, home, experiment)
    plan, sums = _planned(site, home, experiment)
    return plan, experiment_hash(asked), sums


@lru_cache(maxsize=2)
def _planned(site: SiteSettings, home: Path, experiment: str) -> tuple[Plan, dict[int, str]]:
    """Cached: data are read once per run."""
    asked = permitted(site, home, experiment)
    data = own_data(site, home, asked)
    check_scale(site, data, asked)
    check_networks(site, asked, data.task)
    plan = plan_for(asked, data)
    check_privacy(site, plan)
    return plan, sums_of(data, site) if site.allow.sums and not plan.privacy.protects else {}


def forget_data() -> None:
    """Read the data again when they are needed next."""
    _planned.cache_clear()
