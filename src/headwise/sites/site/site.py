"""A site: takes an order, checks it against its policy, runs its clients' jobs, keeps their states, reports."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from ... import __version__
from ...app.prepare import plan_for, prepare
from ...contract.method import record_types
from ...data.federated import Clients
from ...disk.jsontext import to_json
from ...engine.client.jobs import Answer, Job
from ...engine.client.state import States
from ...engine.executors.serial import Serial
from ...engine.host.clock import peak_memory
from ...engine.host.process import one_thread
from ...engine.plan import Plan
from ...errors import HeadwiseError, RunError
from ...records import Record, RecordError, encode, pack
from ...settings.choices import Choice
from ...settings.experiment import Experiment, experiment_from
from ..facts import Introduction, write_for_sites
from ..states import SiteStates
from ..transport.messages import (
    Order,
    Report,
    SiteJob,
    SiteMessage,
    experiment_in,
    pack_error,
    pack_reply,
    pack_report,
    unpack_order,
    unpack_request,
)
from .ledger import Ledger
from .own_data import check_scale, own_data, report_facts, sums_of
from .signing import experiment_hash
from .site_file import SiteSettings, check_networks, check_privacy, permit, read_site

if TYPE_CHECKING:
    from ..secagg.masking import Masking


@dataclass(frozen=True)
class OwnPolicy:
    """What a real site allows: its own data, rules and ledger. All methods raise a `RunError` to refuse."""

    site: SiteSettings
    home: Path
    """the folder of site.toml"""

    def plan(self, experiment: str) -> Plan:
        """The plan of this experiment (JSON) on the site's data."""
        return _plan_own(self.site, self.home, experiment)[0]

    def admit(self, size: int) -> None:
        """Check a message of `size` bytes before it is read."""
        most = self.site.allow.largest * 10**6
        if size > most:
            raise RunError(f"{self.site.name} accepts messages of at most {most:,} bytes, but this one has {size:,}.")

    def check_order(self, plan: Plan, clients: Sequence[int], rounds: Iterable[int]) -> None:
        """Check that an order names clients of this site, each once, and rounds of the experiment."""
        if strange := sorted(set(clients) - {c.id for c in self.site.clients}):
            raise RunError(f"{self.site.name} does not have the clients {strange}.")
        if len(set(clients)) < len(clients):
            raise RunError(f"{self.site.name} takes one job per client at a time.")
        if beyond := sorted({t for t in rounds if not 1 <= t <= plan.experiment.rounds}):
            raise RunError(
                f"{self.site.name} got an order for round {beyond[0]}, but the rounds are 1 to "
                f"{plan.experiment.rounds}."
            )

    def charge(self, plan: Plan, order: Order, kept: SiteStates) -> None:
        """Charge the privacy cost of this order before any client trains."""
        experiment = _plan_own(self.site, self.home, order.experiment)[1]
        Ledger(self.site, self.home).charge(plan, experiment, kept, [site_job.job for site_job in order.site_jobs])

    def release(self, plan: Plan, job: Job, answer: Answer, before: Record | None, after: Record | None) -> Answer:
        """The answer as it may leave: without scores that must not, and refused if its upload has a private tensor."""
        if answer.up is not None:
            known = {_bits(t) for t in pack(job.down).tensors.values()}
            known |= {_bits(t) for m in plan.models for t in m.state().values()}
            sent = {_bits(t) for t in pack(answer.up).tensors.values()}
            for name, t in _private_tensors(plan, before, after):
                if _bits(t) in sent - known:
                    raise RunError(f"{self.site.name} does not send {name!r}: it is private, but in the upload.")
        return answer if self.site.allow.sends_scores else replace(answer, test=None, val=None)

    def introduce(self, experiment: str) -> SiteMessage:
        """An `Introduction`: what the site shares about its data, or why it refuses."""
        site = self.site
        facts = ()
        refusal = None
        try:
            plan, name, sums = _plan_own(site, self.home, experiment)
            Ledger(site, self.home).check_left(plan, name)
            facts = tuple(report_facts(site, plan.data, plan.privacy, sums))
        except HeadwiseError as error:
            refusal = str(error)
        introduction = Introduction(site.name, tuple(c.id for c in site.clients), facts, __version__, refusal)
        return SiteMessage(to_json(asdict(introduction)), [])

    def load_clients(self, experiment: Experiment | None, *, download: bool = False) -> Clients:
        """The site's data; with an experiment, checks as well that it can run here."""
        if experiment is None or download:
            last = max(c.id for c in self.site.clients)
            alone = Experiment(clients=last + 1, data=Choice(self.site.data))
            clients = own_data(self.site, self.home, alone, download=download, alone=True).clients()
            if experiment is None:
                return clients
        return self.plan(write_for_sites(experiment)).data


@dataclass(frozen=True)
class SimulatedPolicy:
    """For the nodes of a simulation, which trust the run that started them: all data, no rules, no ledger."""

    data_dir: Path

    def plan(self, experiment: str) -> Plan:
        return _plan_simulated(experiment, self.data_dir)

    def admit(self, size: int) -> None: ...

    def check_order(self, plan: Plan, clients: Sequence[int], rounds: Iterable[int]) -> None: ...

    def charge(self, plan: Plan, order: Order, kept: SiteStates) -> None: ...

    def release(self, plan: Plan, job: Job, answer: Answer, before: Record | None, after: Record | None) -> Answer:
        return answer


@dataclass(frozen=True)
class Site:
    folder: Path
    policy: OwnPolicy | SimulatedPolicy
    exports: bool = False
    """whether to keep downloads beside the states, so that personal models can be exported"""

    def answer(self, kind: str, message: SiteMessage) -> SiteMessage:
        """Answer a query, which asks who the site is, or an order or a stage of one; an error becomes a report."""
        try:
            self.policy.admit(message.size)
            experiment = experiment_in(message)
            if kind == "query" and isinstance(self.policy, OwnPolicy):
                return self.policy.introduce(experiment)
            plan = self.policy.plan(experiment)
            if stage := unpack_request(message):
                run, request = stage
                self.policy.check_order(plan, request.clients, [request.t])
                return pack_reply(_open_masking(plan, SiteStates(self.folder, run)).answer(request))
            return pack_report(self._carry_out(plan, unpack_order(message, record_types(type(plan.method)))))
        except (HeadwiseError, RecordError) as error:
            return pack_error(error)
        except Exception as error:  # no message may stop the site, and an error text may reveal data
            logging.getLogger(__name__).exception("a message failed")
            return pack_error(RunError(f"this is a bug in Headwise ({type(error).__name__}): see the site's log."))

    def _carry_out(self, plan: Plan, order: Order) -> Report:
        kept = SiteStates(self.folder, order.run)
        jobs = {site_job.job.client: site_job.job for site_job in order.site_jobs}
        self.policy.check_order(plan, [site_job.job.client for site_job in order.site_jobs], _rounds(jobs.values()))
        masking = None
        if order.sealed is not None or (plan.experiment.secure.sums and any(j.kind == "fit" for j in jobs.values())):
            masking = _open_masking(plan, kept)
            masking.check_order(order)
        states = States(record_types(type(plan.method)).client)
        for job, digest in order.site_jobs:
            if (data := kept.take(job.client, digest)) is not None:
                states[job.client] = data
        self.policy.charge(plan, order, kept)
        before = {c: states[c].me for c in states}
        executor = Serial(plan, states)
        with one_thread():
            done = list(executor.run(jobs.values()))
        after = {c: states[c].me for c in states}
        if self.exports:
            _keep_downloads(kept, order)
        answers = [
            self.policy.release(plan, jobs[a.client], a, before.get(a.client), after.get(a.client)) for a in done
        ]
        executor.clock.to("transport")
        digests = _keep_states(kept, order, answers, states)
        named = [(answer, digests.get(answer.client, "")) for answer in answers]
        masked = None
        if masking is not None:
            named, masked = masking.mask(order, named)
        executor.clock.stop()
        return Report(named, dict(executor.clock.seconds), os.getpid(), peak_memory(), masked)


def _rounds(jobs: Iterable[Job]) -> list[int]:
    """The rounds that the experiment must have; before the first, a client only measures or answers a census."""
    jobs = [job for job in jobs if job.t or job.kind in ("fit", "idle", "census")]
    return [1 if (job.kind, job.t) == ("census", 0) else job.t for job in jobs]


def _keep_downloads(kept: SiteStates, order: Order) -> None:
    kept.remember(order.experiment)
    for job, _ in order.site_jobs:
        if job.kind not in ("census", "global"):
            kept.put_download(job.client, encode(job.down))


def _keep_states(kept: SiteStates, order: Order, answers: Iterable[Answer], states: States) -> dict[int, str]:
    """Write the states of clients that trained; return their digests."""
    site_jobs: dict[int, SiteJob] = {site_job.job.client: site_job for site_job in order.site_jobs}
    digests: dict[int, str] = {}
    for answer in answers:
        job, before = site_jobs[answer.client]
        if answer.failure is None and job.kind in ("fit", "idle") and (data := states.encode(job.client)):
            digests[job.client] = kept.put(job.client, job.t, data, before)
    return digests


def _open_masking(plan: Plan, kept: SiteStates) -> Masking:
    from ..secagg.masking import Masking  # imported here because only masking needs Flower

    return Masking(plan, kept)


def open_site(path: Path) -> tuple[Site, OwnPolicy]:
    home = path.absolute().parent
    settings = read_site(path)
    policy = OwnPolicy(settings, home)
    return Site(home / settings.states, policy, exports=True), policy


def _private_tensors(plan: Plan, *records: Record | None) -> Iterator[tuple[str, Tensor]]:
    """Tensors that must not leave; constant ones are not secret."""
    for record in records:
        for name, t in pack(record).tensors.items() if record is not None else ():
            field = name.split("/")[0]
            if field not in type(plan.method).uploaded_fields and t.numel() and bool((t != t.flatten()[0]).any()):
                yield field, t


def _bits(t: Tensor) -> tuple[str, bytes]:
    return str(t.dtype), t.detach().cpu().contiguous().numpy().tobytes()


@lru_cache(maxsize=1)
def _plan_simulated(experiment: str, data_dir: Path) -> Plan:
    """Cached: the next message is usually from the same run."""
    return prepare(experiment_from(json.loads(experiment)), data_dir).plan


def _plan_own(site: SiteSettings, home: Path, experiment: str) -> tuple[Plan, str, dict[int, str]]:
    """The plan, the experiment's hash for the ledger, and the sums that may leave.

    Whether it may run here is checked each time.
    """
    permitted = permit(site, home, experiment)
    plan, sums = _load_plan(site, home, experiment)
    return plan, experiment_hash(permitted), sums


@lru_cache(maxsize=2)
def _load_plan(site: SiteSettings, home: Path, text: str) -> tuple[Plan, dict[int, str]]:
    """Cached: data are read once per run."""
    experiment = permit(site, home, text)
    data = own_data(site, home, experiment)
    check_scale(site, data, experiment)
    check_networks(site, experiment, data.task)
    plan = plan_for(experiment, data)
    check_privacy(site, plan)
    return plan, sums_of(data, site) if site.allow.sums and not plan.privacy.protects else {}


def forget_data() -> None:
    """Read the data again when they are needed next."""
    _load_plan.cache_clear()
