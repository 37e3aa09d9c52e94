"""``site.toml``: what a site decides for itself, and the checks of an experiment against it.

From the server's experiment a site takes only numbers and the names of methods and models in its own Headwise. It
never takes a path: only site.toml says which data are read, and from where.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import nn

from ...app import registry
from ...contract.method import Method, record_types
from ...engine.plan import Plan
from ...errors import ConfigError, RunError, nearest
from ...models.base import Task
from ...privacy.accountant import account
from ...records import fields_of
from ...settings.choices import OWN, Choice
from ...settings.experiment import Experiment, read_toml
from ...settings.fields import Count, Natural, Positive, Range, build
from ...settings.foreign import read_foreign
from ...settings.names import Kind, list_names
from ...settings.options import Engine
from ..facts import CLASSES, STATISTICS
from ..transport.envelope import LARGEST_MEGABYTES
from .signing import experiment_hash, read_signed_list

MOST_CLIENTS = 100_000
MOST_MODELS = 100
"""limits of an experiment: a site keeps a row per client in memory and builds every network"""


@dataclass(frozen=True)
class OwnClient:
    id: Natural
    """its number in the federation"""
    source: str
    """its data: a source with options, or your own file; all of its samples belong to this client"""
    folder: str = "."
    """where the source finds its files, relative to site.toml"""


@dataclass(frozen=True)
class Allow:
    """What may run at the site, and what may leave it."""

    methods: tuple[str, ...] = ()
    """methods that may run; empty: all methods of the installed Headwise"""
    experiments: str | None = None
    """a signed list of the only experiments that may run"""
    signer: str | None = None
    """the public key that the list must be signed with"""
    fields: tuple[str, ...] | None = None
    """fields of a method's upload that may leave; default: all"""
    labels: bool = False
    """whether to tell the server how many samples of each class a client has"""
    sums: bool = False
    """whether to tell the server sums, counts and categories of the features, to fit preprocessing on all sites, and
    sums of a regression's targets"""
    scores: bool | None = None
    """whether to send scores on a client's own samples; default: only without an epsilon, which does not cover them"""
    largest: Count = LARGEST_MEGABYTES
    """most megabytes of a message, and of all networks of an experiment"""
    plain: bool = True
    """whether unmasked uploads may leave; if not, only experiments with `secure.sums` run"""
    epsilon: Positive | None = None
    """the most epsilon that one run may spend per client; refuses runs without differential privacy"""
    epsilon_total: Positive | None = None
    """the most epsilon that all runs together may spend per client; default: the same as `epsilon`"""
    delta: Annotated[float, Range(0, 0.1, above=True)] = 1e-5
    """the largest delta of a run; also the delta of `epsilon_total`"""

    @property
    def total(self) -> float | None:
        return self.epsilon if self.epsilon_total is None else self.epsilon_total

    @property
    def sends_scores(self) -> bool:
        return self.epsilon is None if self.scores is None else self.scores


@dataclass(frozen=True)
class SiteSettings:
    """The content of ``site.toml``."""

    name: str
    """the site's name in reports"""
    data: str
    """the data set's name in experiments"""
    clients: tuple[OwnClient, ...]
    """the clients at this site"""
    states: str = "states"
    """folder for personal states, relative to site.toml"""
    device: str = "cpu"
    """cpu, cuda, cuda:1 or mps"""
    allow: Allow = field(default_factory=Allow)


def read_site(path: Path) -> SiteSettings:
    return check_site(read_toml(path), path)


def check_site(values: Mapping[str, Any], path: Path) -> SiteSettings:
    """Build and check the settings; `path` is only named in errors."""
    site = build(SiteSettings, values)
    if not site.clients:
        raise ConfigError(f"{path}: clients is empty, but a site must have at least one.")
    if len({c.id for c in site.clients}) < len(site.clients):
        raise ConfigError(f"{path}: clients has the same id twice.")
    for name in site.allow.methods:
        if name not in list_names("method"):
            raise ConfigError(f"{path}: allow.methods names {name!r}: {nearest(name, list_names('method'))}")
    if (site.allow.experiments is None) != (site.allow.signer is None):
        raise ConfigError(f"{path}: allow.experiments and allow.signer must be given together.")
    if site.allow.epsilon_total is not None and site.allow.epsilon_total < (site.allow.epsilon or math.inf):
        raise ConfigError(
            f"{path}: allow.epsilon_total is {site.allow.epsilon_total:g}, but must be at least allow.epsilon, "
            f"which is {site.allow.epsilon or 'missing'}."
        )
    return site


def permit(site: SiteSettings, home: Path, text: str) -> Experiment:
    """The experiment in an order, if it may run here, with the site's own data and machine settings."""
    try:
        experiment = read_foreign(text)
    except ConfigError as error:
        raise RunError(f"{site.name} can't read this experiment: {error}") from error
    method = _make_allowed(site, "method", experiment.method)
    for model in _networks(experiment):
        _make_allowed(site, "model", model)
    if experiment.data.name != site.data:
        raise RunError(f"{site.name} has the data set {site.data!r}, not {experiment.data.name!r}.")
    if not experiment.model or experiment.clients is None:
        raise RunError(f"{site.name} can't run an experiment without model and clients: both must be given.")
    if experiment.clients > MOST_CLIENTS or len(experiment.model) > MOST_MODELS:
        raise RunError(
            f"{site.name} accepts experiments with at most {MOST_CLIENTS:,} clients and {MOST_MODELS} networks, "
            f"but this one has {experiment.clients:,} and {len(experiment.model):,}."
        )
    if own := [a.name for a in experiment.train.augment if not a.is_built_in]:
        raise RunError(f"{site.name} only runs its own Headwise, but train.augment is {own[0]!r}.")
    if experiment.fraction < 1:
        raise RunError(
            f"{site.name} can't use a share of all samples: fraction is {experiment.fraction:g}, but must be 1."
        )
    if beyond := [c.id for c in site.clients if c.id >= experiment.clients]:
        raise RunError(f"{site.name} has the clients {beyond}, but the experiment has only {experiment.clients}.")
    if not site.allow.plain and not experiment.secure.sums:
        raise RunError(f"{site.name} only sends masked sums, but secure.sums is false in the experiment.")
    _check_list(site, home, experiment)
    _check_fields(site, method)
    engine = Engine(device=site.device, kernels=experiment.engine.kernels)
    own = experiment.data.options if site.data == OWN else {}
    kept = {k: own[k] for k in (STATISTICS, CLASSES) if own.get(k)}
    return replace(experiment, data=Choice(site.data, kept), partition=Choice("natural"), engine=engine)


def _make_allowed(site: SiteSettings, kind: Kind, choice: Choice) -> Any:
    """Build the choice, if the installed Headwise has it and, for a method, this site allows it."""
    name = choice.name.partition("@")[0]
    known = list_names(kind)
    allowed = [n for n in known if n in (site.allow.methods or known)] if kind == "method" else known
    if name not in allowed:
        raise RunError(f"{site.name} does not allow the {kind} {name!r}: {nearest(name, allowed)}")
    return registry.make(kind, choice)


def _check_list(site: SiteSettings, home: Path, experiment: Experiment) -> None:
    if site.allow.experiments is None or site.allow.signer is None:
        return
    known = read_signed_list(home / site.allow.experiments, home / site.allow.signer)
    if (name := experiment_hash(experiment)) not in known:
        raise RunError(f"{site.name} does not allow the experiment {name[:12]}: it is not on the signed list.")


def _check_fields(site: SiteSettings, method: Method[Any, Any, Any, Any]) -> None:
    if site.allow.fields is None:
        return
    types = record_types(type(method))
    sent = {**fields_of(types.up), **fields_of(types.census)}
    if refused := sorted(sent.keys() - set(site.allow.fields)):
        raise RunError(f"{site.name} sends {', '.join(site.allow.fields) or 'nothing'} only, not {', '.join(refused)}.")


def _networks(experiment: Experiment) -> tuple[Choice, ...]:
    return (*experiment.model, experiment.server_model) if experiment.server_model else experiment.model


def check_networks(site: SiteSettings, experiment: Experiment, task: Task) -> None:
    """Refuse networks that are too large, before allocating memory for them."""
    most = site.allow.largest * 10**6
    size = 0
    for choice in _networks(experiment):
        with torch.device("meta"):
            network: nn.Module = registry.make("model", choice).build(task)
        size += sum(t.numel() * t.element_size() for t in network.state_dict().values())
        if size > most:
            raise RunError(f"{site.name} allows {most:,} bytes of networks, but {choice.name} makes it {size:,}.")


def check_privacy(site: SiteSettings, plan: Plan) -> None:
    """Refuse a run that spends more than this site allows, by the site's own accounting."""
    limit = site.allow.epsilon
    if limit is None:
        return
    spent = account(plan)
    if not spent or plan.privacy.source != "system":
        raise RunError(f"{site.name} requires an epsilon of at most {limit:g}, but the experiment has no privacy.")
    if not (spent["epsilon"] <= limit and spent["delta"] <= site.allow.delta):
        raise RunError(
            f"{site.name} requires an epsilon of at most {limit:g} at a delta of at most {site.allow.delta:g}, but the "
            f"experiment has {spent['epsilon']:.3g} at {spent['delta']:g}."
        )
