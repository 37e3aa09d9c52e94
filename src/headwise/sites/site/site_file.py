"""What a site decides for itself: its ``site.toml``. An order may ask for nothing else.

Of an experiment that comes from the server, a site takes numbers and names: a method and models that its own Headwise
has. Paths are never taken: which data are read, and from where, stands in this file only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import nn

from ...contract.method import Method, record_types
from ...engine.plan import Plan
from ...errors import ConfigError, HeadwiseError, RunError, nearest
from ...models.base import Task
from ...privacy.accountant import account
from ...records import fields_of
from ...settings import catalog
from ...settings.experiment import Choice, Experiment, experiment_from, read_toml
from ...settings.fields import Count, Natural, Positive, Range, build
from ...settings.options import Engine
from .signing import experiment_hash, signed_hashes

MOST_CLIENTS, MOST_MODELS = 100_000, 100
"""of an experiment: a site has a line for each client in memory, and builds every network"""


@dataclass(frozen=True)
class OwnClient:
    """A client that lives at this site."""

    id: Natural
    """its number in the federation"""
    source: str
    """its data: a source with options, or a file of one's own; all samples that it yields are this client's"""
    folder: str = "."
    """where the source finds its files, from site.toml on"""


@dataclass(frozen=True)
class Allow:
    """What may be done here, and what may leave."""

    methods: tuple[str, ...] = ()
    """methods that may run; none: all that this Headwise has"""
    experiments: str | None = None
    """a file with a signed list of experiments: no others may run"""
    signer: str | None = None
    """the public key of whoever signs that list"""
    fields: tuple[str, ...] | None = None
    """fields of a method's message that may leave; none: all that it sends"""
    labels: bool = False
    """whether the server may know how many samples of each class a client has"""
    scores: bool | None = None
    """whether the server may know how good models are on a client's own samples; none: unless there is an epsilon,
    which does not cover them"""
    largest: Count = 500
    """megabytes of a message, or of the networks of an experiment, at most"""
    plain: bool = True
    """whether single messages may leave; if not, only experiments with masked sums run (`secure.sums`)"""
    epsilon: Positive | None = None
    """the most that a run may tell the server about a client; runs without differential privacy are then refused"""
    epsilon_total: Positive | None = None
    """the most that all runs together may tell; none: as much as one may"""
    delta: Annotated[float, Range(0, 0.1, above=True)] = 1e-5
    """probability with which that may be exceeded"""

    @property
    def total(self) -> float | None:
        """What `epsilon_total` comes to."""
        return self.epsilon if self.epsilon_total is None else self.epsilon_total

    @property
    def tells_scores(self) -> bool:
        """What `scores` comes to."""
        return self.epsilon is None if self.scores is None else self.scores


@dataclass(frozen=True)
class SiteSettings:
    """A site: ``site.toml``."""

    name: str
    """as reports show it"""
    data: str
    """the data set, as experiments name it"""
    clients: tuple[OwnClient, ...]
    """who lives here"""
    states: str = "states"
    """the folder of the personal states, from site.toml on"""
    device: str = "cpu"
    """cpu, cuda, cuda:1 or mps"""
    allow: Allow = field(default_factory=Allow)


def read_site(path: Path) -> SiteSettings:
    """The settings in this file."""
    return check_site(read_toml(path), path)


def check_site(values: Mapping[str, Any], path: Path) -> SiteSettings:
    """The settings in these values, which stand in, or are meant for, this file."""
    found = build(SiteSettings, values)
    if not found.clients:
        raise ConfigError(f"{path}: clients is empty, but a site must have at least one.")
    if len({c.id for c in found.clients}) < len(found.clients):
        raise ConfigError(f"{path}: clients names an id twice.")
    for name in found.allow.methods:
        if name not in catalog.names("method"):
            raise ConfigError(f"{path}: allow.methods names {name!r}: {nearest(name, catalog.names('method'))}")
    if (found.allow.experiments is None) != (found.allow.signer is None):
        raise ConfigError(f"{path}: allow.experiments and allow.signer must be given together.")
    if found.allow.epsilon_total is not None and found.allow.epsilon_total < (found.allow.epsilon or math.inf):
        raise ConfigError(
            f"{path}: allow.epsilon_total is {found.allow.epsilon_total:g}, but must be at least allow.epsilon, "
            f"which is {found.allow.epsilon or 'missing'}."
        )
    return found


def permitted(site: SiteSettings, home: Path, text: str) -> Experiment:
    """The experiment in an order, if it may run here; whatever it says about data, paths and machines is left out."""
    try:
        asked = experiment_from(json.loads(text))
    except (ValueError, TypeError, AttributeError, HeadwiseError) as error:
        raise RunError(f"{site.name} can't read this experiment: {error}") from error
    method = _known(site, "method", asked.method)
    for model in (*asked.model, *((asked.server_model,) if asked.server_model else ())):
        _known(site, "model", model)
    offered = Path(asked.data.name).stem
    if offered != site.data:
        raise RunError(f"{site.name} has the data set {site.data!r}, not {offered!r}.")
    if not asked.model or asked.clients is None:
        raise RunError(f"{site.name} can't run an experiment that does not name its model and its number of clients.")
    if asked.clients > MOST_CLIENTS or len(asked.model) > MOST_MODELS:
        raise RunError(
            f"{site.name} takes experiments with {MOST_CLIENTS:,} clients and {MOST_MODELS} networks at most, "
            f"but this one has {asked.clients:,} and {len(asked.model):,}."
        )
    if asked.fraction < 1:
        raise RunError(f"{site.name} can't take a share of all samples: fraction must be 1.")
    if beyond := [c.id for c in site.clients if c.id >= asked.clients]:
        raise RunError(f"{site.name} has the clients {beyond}, but the experiment has only {asked.clients}.")
    if not site.allow.plain and not asked.secure.sums:
        raise RunError(f"{site.name} lets only masked sums leave, but secure.sums is false in the experiment.")
    _check_list(site, home, asked)
    _check_fields(site, method)
    engine = Engine(device=site.device, kernels=asked.engine.kernels)
    return replace(asked, data=Choice(site.data), partition=Choice("natural"), engine=engine)


def _known(site: SiteSettings, kind: catalog.Kind, choice: Choice) -> Any:
    """What is chosen, built; only of those that come with Headwise and, of methods, that this site allows."""
    name, known = choice.name.partition("@")[0], catalog.names(kind)
    allowed = [n for n in known if n in (site.allow.methods or known)] if kind == "method" else known
    if name not in allowed:
        raise RunError(f"{site.name} does not allow the {kind} {name!r}: {nearest(name, allowed)}")
    return choice.make(kind)


def _check_list(site: SiteSettings, home: Path, asked: Experiment) -> None:
    if site.allow.experiments is None or site.allow.signer is None:
        return
    known = signed_hashes(home / site.allow.experiments, home / site.allow.signer)
    if (found := experiment_hash(asked)) not in known:
        raise RunError(f"{site.name} does not allow the experiment {found[:12]}: it is not on the signed list.")


def _check_fields(site: SiteSettings, method: Method[Any, Any, Any, Any]) -> None:
    if site.allow.fields is None:
        return
    sent = fields_of(record_types(type(method)).up)
    if refused := sorted(sent.keys() - set(site.allow.fields)):
        raise RunError(f"{site.name} lets {', '.join(site.allow.fields) or 'nothing'} leave, not {', '.join(refused)}.")


def check_networks(site: SiteSettings, asked: Experiment, task: Task) -> None:
    """Refuse networks that are too large, before any memory is given to them."""
    most, size = site.allow.largest * 10**6, 0
    for choice in (*asked.model, *((asked.server_model,) if asked.server_model else ())):
        with torch.device("meta"):
            network: nn.Module = choice.make("model").build(task)
        size += sum(t.numel() * t.element_size() for t in network.state_dict().values())
        if size > most:
            raise RunError(f"{site.name} builds networks of {most:,} bytes at most, but {choice.name} has {size:,}.")


def check_privacy(site: SiteSettings, plan: Plan) -> None:
    """Refuse a run that tells more than this site allows; what it tells, the site reckons itself."""
    limit = site.allow.epsilon
    if limit is None:
        return
    spent = account(plan)
    if not spent or plan.privacy.source != "system":
        raise RunError(f"{site.name} asks for privacy of epsilon {limit:g} at most, but the experiment has none.")
    if not (spent["epsilon"] <= limit and spent["delta"] <= site.allow.delta):
        raise RunError(
            f"{site.name} asks for privacy of epsilon {limit:g} and delta {site.allow.delta:g} at most, but the "
            f"experiment comes to {spent['epsilon']:.3g} and {spent['delta']:g}."
        )
