"""A site's policy: whether an order may run here, on which data, and what may leave.

From the server's experiment a site takes only numbers and the names of methods and models in its own Headwise. It
never takes a path: only site.toml says which data are read, and from where.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ... import __version__
from ...app import registry
from ...app.prepare import plan_for
from ...contract.method import record_types
from ...data.federated import Clients
from ...disk.jsontext import to_json
from ...engine.client.jobs import Answer, Job
from ...engine.plan import Plan
from ...errors import ConfigError, HeadwiseError, RunError, nearest
from ...models.base import Task
from ...privacy.accountant import account
from ...records import Record, fields_of, pack
from ...settings.choices import OWN, Choice
from ...settings.experiment import Experiment
from ...settings.foreign import read_foreign
from ...settings.names import Kind, list_names
from ...settings.options import Engine
from ..facts import CLASSES, STATISTICS, Introduction, experiment_hash, write_for_sites
from ..keys import read_signed_list
from ..states import SiteStates
from ..transport.envelope import SiteMessage
from ..transport.messages import Order
from .ledger import Ledger
from .own_data import check_scale, own_data, report_facts, sums_of
from .site_file import Allow, SiteSettings, read_site

MOST_CLIENTS = 100_000
MOST_MODELS = 100
"""limits of an experiment: a site keeps a row per client in memory and builds every network"""


@dataclass(frozen=True)
class Policy:
    """What a site allows: its own data, rules and ledger. All methods raise a `RunError` to refuse."""

    settings: SiteSettings
    home: Path
    """the folder of site.toml"""

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def allow(self) -> Allow:
        return self.settings.allow

    @property
    def states(self) -> Path:
        """The folder of its clients' states."""
        return self.home / self.settings.states

    @property
    def _most_bytes(self) -> int:
        return self.allow.largest * 10**6

    def admit(self, size: int) -> None:
        """Check a message of `size` bytes before it is read."""
        if size > self._most_bytes:
            raise RunError(
                f"{self.name} accepts messages of at most {self._most_bytes:,} bytes, but this one has {size:,}."
            )

    def plan(self, experiment: str) -> Plan:
        """The plan of this experiment (JSON) on the site's data."""
        self.permit(experiment)  # each time, since a signed list may change
        return _load_plan(self, experiment)[0]

    def permit(self, text: str) -> Experiment:
        """The experiment in an order, if it may run here, with the site's own data and machine settings."""
        try:
            experiment = read_foreign(text)
        except ConfigError as error:
            raise RunError(f"{self.name} can't read this experiment: {error}") from error
        method = self._make_allowed("method", experiment.method)
        for model in experiment.networks:
            self._make_allowed("model", model)
        if experiment.data.name != self.settings.data:
            raise RunError(f"{self.name} has the data set {self.settings.data!r}, not {experiment.data.name!r}.")
        if not experiment.model or experiment.clients is None:
            raise RunError(f"{self.name} can't run an experiment without model and clients: both must be given.")
        if experiment.clients > MOST_CLIENTS or len(experiment.model) > MOST_MODELS:
            raise RunError(
                f"{self.name} accepts experiments with at most {MOST_CLIENTS:,} clients and {MOST_MODELS} networks, "
                f"but this one has {experiment.clients:,} and {len(experiment.model):,}."
            )
        if own := [a.name for a in experiment.train.augment if not a.is_built_in]:
            raise RunError(f"{self.name} only runs its own Headwise, but train.augment is {own[0]!r}.")
        if experiment.fraction < 1:
            raise RunError(
                f"{self.name} can't use a share of all samples: fraction is {experiment.fraction:g}, but must be 1."
            )
        if beyond := [c.id for c in self.settings.clients if c.id >= experiment.clients]:
            raise RunError(f"{self.name} has the clients {beyond}, but the experiment has only {experiment.clients}.")
        if not self.allow.plain and not experiment.secure.sums:
            raise RunError(f"{self.name} only sends masked sums, but secure.sums is false in the experiment.")
        self._check_list(experiment)
        self._check_fields(type(method))
        engine = Engine(device=self.settings.device, kernels=experiment.engine.kernels)
        own = experiment.data.options if self.settings.data == OWN else {}
        kept = {k: own[k] for k in (STATISTICS, CLASSES) if own.get(k)}
        return replace(experiment, data=Choice(self.settings.data, kept), partition=Choice("natural"), engine=engine)

    def _make_allowed(self, kind: Kind, choice: Choice) -> Any:
        """Build the choice, if the installed Headwise has it and, for a method, this site allows it."""
        name = choice.name.partition("@")[0]
        known = list_names(kind)
        allowed = [n for n in known if n in (self.allow.methods or known)] if kind == "method" else known
        if name not in allowed:
            raise RunError(f"{self.name} does not allow the {kind} {name!r}: {nearest(name, allowed)}")
        return registry.make(kind, choice)

    def _check_list(self, experiment: Experiment) -> None:
        if self.allow.experiments is None or self.allow.signer is None:
            return
        known = read_signed_list(self.home / self.allow.experiments, self.home / self.allow.signer)
        if (name := experiment_hash(experiment)) not in known:
            raise RunError(f"{self.name} does not allow the experiment {name[:12]}: it is not on the signed list.")

    def _check_fields(self, method: type[Any]) -> None:
        if self.allow.fields is None:
            return
        types = record_types(method)
        sent = {**fields_of(types.up), **fields_of(types.census)}
        if refused := sorted(sent.keys() - set(self.allow.fields)):
            raise RunError(
                f"{self.name} sends {', '.join(self.allow.fields) or 'nothing'} only, not {', '.join(refused)}."
            )

    def check_networks(self, experiment: Experiment, task: Task) -> None:
        """Refuse networks that are too large, before allocating memory for them."""
        most = self._most_bytes
        size = 0
        for choice in experiment.networks:
            with torch.device("meta"):
                network: nn.Module = registry.make("model", choice).build(task)
            size += sum(t.numel() * t.element_size() for t in network.state_dict().values())
            if size > most:
                raise RunError(f"{self.name} allows {most:,} bytes of networks, but {choice.name} makes it {size:,}.")

    def check_privacy(self, plan: Plan) -> None:
        """Refuse a run that spends more than this site allows, by the site's own accounting."""
        limit = self.allow.epsilon
        if limit is None:
            return
        spent = account(plan)
        if not spent or plan.privacy.source != "system":
            raise RunError(f"{self.name} requires an epsilon of at most {limit:g}, but the experiment has no privacy.")
        if not (spent["epsilon"] <= limit and spent["delta"] <= self.allow.delta):
            raise RunError(
                f"{self.name} requires an epsilon of at most {limit:g} at a delta of at most {self.allow.delta:g}, "
                f"but the experiment has {spent['epsilon']:.3g} at {spent['delta']:g}."
            )

    def check_order(self, plan: Plan, clients: Sequence[int], rounds: Iterable[int]) -> None:
        """Check that an order names clients of this site, each once, and rounds of the experiment."""
        if strange := sorted(set(clients) - {c.id for c in self.settings.clients}):
            raise RunError(f"{self.name} does not have the clients {strange}.")
        if len(set(clients)) < len(clients):
            raise RunError(f"{self.name} takes one job per client at a time.")
        if beyond := sorted({t for t in rounds if not 1 <= t <= plan.experiment.rounds}):
            raise RunError(
                f"{self.name} got an order for round {beyond[0]}, but the rounds are 1 to {plan.experiment.rounds}."
            )

    def charge(self, plan: Plan, order: Order, kept: SiteStates) -> None:
        """Charge the privacy cost of this order before any client trains."""
        experiment = experiment_hash(self.permit(order.experiment))
        Ledger(self.settings, self.home).charge(plan, experiment, kept, [each.job for each in order.site_jobs])

    def release(self, plan: Plan, job: Job, answer: Answer, before: Record | None, after: Record | None) -> Answer:
        """The answer as it may leave: without scores that must stay, and refused if its upload has a private tensor."""
        if answer.up is not None:
            known = {_bits(t) for t in pack(job.down).tensors.values()}
            known |= {_bits(t) for m in plan.models for t in m.state().values()}
            sent = {_bits(t) for t in pack(answer.up).tensors.values()}
            for name, t in _private_tensors(plan, before, after):
                if _bits(t) in sent - known:
                    raise RunError(f"{self.name} does not send {name!r}: it is private, but in the upload.")
        return answer if self.allow.sends_scores else replace(answer, test=None, val=None)

    def introduce(self, experiment: str) -> SiteMessage:
        """An `Introduction`: what the site shares about its data, or why it refuses."""
        facts = ()
        refusal = None
        try:
            permitted = self.permit(experiment)
            plan, sums = _load_plan(self, experiment)
            Ledger(self.settings, self.home).check_left(plan, experiment_hash(permitted))
            facts = tuple(report_facts(self.settings, plan.data, plan.privacy, sums))
        except HeadwiseError as error:
            refusal = str(error)
        clients = tuple(c.id for c in self.settings.clients)
        introduction = Introduction(self.name, clients, facts, __version__, refusal)
        return SiteMessage(to_json(asdict(introduction)), [])

    def load_clients(self, experiment: Experiment | None, *, download: bool = False) -> Clients:
        """The site's data; with an experiment, checks as well that it can run here."""
        if experiment is None or download:
            last = max(c.id for c in self.settings.clients)
            alone = Experiment(clients=last + 1, data=Choice(self.settings.data))
            clients = own_data(self.settings, self.home, alone, download=download, alone=True).clients()
            if experiment is None:
                return clients
        return self.plan(write_for_sites(experiment)).data


def read_policy(path: Path) -> Policy:
    return Policy(read_site(path), path.absolute().parent)


@lru_cache(maxsize=2)
def _load_plan(policy: Policy, text: str) -> tuple[Plan, dict[int, str]]:
    """The plan, and the sums that may leave. Cached: data are read once per run."""
    experiment = policy.permit(text)
    data = own_data(policy.settings, policy.home, experiment)
    check_scale(policy.settings, data, experiment)
    policy.check_networks(experiment, data.task)
    plan = plan_for(experiment, data)
    policy.check_privacy(plan)
    return plan, sums_of(data, policy.settings) if policy.settings.allow.sums and not plan.privacy.protects else {}


def forget_data() -> None:
    """Read the data again when they are needed next."""
    _load_plan.cache_clear()


def _private_tensors(plan: Plan, *records: Record | None) -> Iterator[tuple[str, Tensor]]:
    """Tensors that must not leave; constant ones are not secret."""
    for record in records:
        for name, t in pack(record).tensors.items() if record is not None else ():
            field = name.split("/")[0]
            if field not in type(plan.method).uploaded_fields and t.numel() and bool((t != t.flatten()[0]).any()):
                yield field, t


def _bits(t: Tensor) -> tuple[str, bytes]:
    return str(t.dtype), t.detach().cpu().contiguous().numpy().tobytes()
