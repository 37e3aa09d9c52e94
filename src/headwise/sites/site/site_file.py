"""``site.toml``: what a site decides for itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from ...errors import ConfigError, nearest
from ...settings.experiment import read_toml
from ...settings.fields import Count, Natural, Positive, Range, build
from ...settings.names import list_names
from ..transport.envelope import LARGEST_MEGABYTES


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
