"""`headwise site review`: what a study would do at this site, before anything is allowed. Nothing is sent."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from ...app import registry
from ...audit.findings import KnownAttack, known_audits, strongest
from ...contract.method import record_types
from ...engine.plan import Plan
from ...errors import HeadwiseError, counted
from ...privacy.accountant import account
from ...records import fields_of
from ...settings.experiment import Experiment
from ...settings.fields import field_help
from ...tasks.registry import kind_of
from ..facts import for_sites, written_for_sites
from .holdings import PrivacySpent, spent
from .ledger import Ledger
from .own_data import own_data, tell
from .policy import OwnPolicy
from .signing import experiment_hash
from .site_file import Allow, SiteSettings, check_networks, check_privacy, permitted, read_site
from .trial import ClientTraffic, kind_of_message, rehearse_client

TOGETHER = (("experiments", "signer"), ("epsilon", "delta", "epsilon_total"))
"""settings of a site that only mean something together"""


@dataclass(frozen=True)
class Refusal:
    setting: str
    """of site.toml; empty if no change of what is allowed would help"""
    why: str


@dataclass(frozen=True)
class Review:
    experiment: Experiment
    sent: Mapping[str, str]
    """each field of the method's upload, and what it is"""
    stays: str
    told: tuple[str, ...] = ()
    """what the server learns when the site introduces itself, and with each evaluation"""
    traffic: tuple[ClientTraffic, ...] = ()
    promise: Mapping[str, Any] | None = None
    """epsilon, delta and unit of the whole run; empty: no privacy; None: not known without the site's data"""
    spent: tuple[PrivacySpent, ...] = ()
    like: str = ""
    """the audited method whose messages are of the same kind, if there is one"""
    attacks: tuple[KnownAttack, ...] = ()
    refusals: tuple[Refusal, ...] | None = None
    """None: no site was given"""

    def plain(self) -> dict[str, Any]:
        rest = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "experiment"}
        listed = {k: [asdict(each) for each in rest[k]] for k in ("traffic", "attacks")}
        budget = [each._asdict() for each in self.spent]
        refused = None if self.refusals is None else [asdict(each) for each in self.refusals]
        return {
            "method": self.experiment.method.name, "rounds": self.experiment.rounds, **rest, **listed,
            "spent": budget, "refusals": refused,
        }  # fmt: skip


def review(asked: Experiment, home: Path | None) -> Review:
    """Review this experiment for the site in `home`; without one, only what holds at every site."""
    experiment = for_sites(asked)
    method = type(registry.make("method", experiment.method))
    up = record_types(method).up
    said = " ".join((inspect.getdoc(up) or "").split()).rstrip(".")
    sent = {name: field_help(up).get(name, said) for name in fields_of(up)}
    known = experiment.method.name.partition("@")[0]
    like = known if known in known_audits() else ""
    bare = Review(experiment, sent, method.stays, like=like, attacks=strongest(like, None) if like else ())
    if home is None:
        return bare
    site, text = read_site(home / "site.toml"), written_for_sites(experiment)
    opened = replace(site, allow=Allow(largest=site.allow.largest))
    try:
        plan = OwnPolicy(opened, home).plan(text)
    except HeadwiseError as error:
        return replace(bare, refusals=(Refusal(_setting(opened, home, text), str(error)),))
    promise, rehearsed = account(plan), [rehearse_client(plan, own.id) for own in site.clients]
    like = like or kind_of_message(plan, rehearsed[0].message)
    shielded = (promise.get("unit"), promise.get("source")) == ("client", "system")  # as in the audit
    asks = rehearsed[0].asks and not plan.privacy.protects
    return replace(
        bare,
        told=tuple(_told(site, plan, asks)),
        traffic=tuple(each.traffic for each in rehearsed),
        promise={k: v for k, v in promise.items() if k in ("epsilon", "delta", "unit", "source")},
        spent=tuple(spent(home / "site.toml")),
        like=like,
        attacks=strongest(like, promise["epsilon"] if shielded else None) if like else (),
        refusals=tuple(_refusals(site, plan, home, text, asks)),
    )


def _setting(opened: SiteSettings, home: Path, text: str) -> str:
    """Which setting refuses although all others are open: only the limit on networks can."""
    try:
        asked = permitted(opened, home, text)
        task = own_data(opened, home, asked).task
    except HeadwiseError:
        return ""
    try:
        check_networks(opened, asked, task)
    except HeadwiseError:
        return "allow.largest"
    return ""


def _refusals(site: SiteSettings, plan: Plan, home: Path, text: str, asks: bool) -> Iterator[Refusal]:
    """Each setting that refuses, tried alone."""
    for group in (("methods",), ("fields",), ("plain",), *TOGETHER):
        alone = replace(site, allow=Allow(**{name: getattr(site.allow, name) for name in group}))
        try:
            permitted(alone, home, text)
            check_privacy(alone, plan)
            Ledger(alone, home).check_left(plan, experiment_hash(plan.experiment))
        except HeadwiseError as error:
            yield Refusal(f"allow.{group[0]}", str(error))
    if asks and not site.allow.labels:
        name = plan.experiment.method.name
        yield Refusal("allow.labels", f"{name} must know which classes each client has, but this site does not tell.")


def _told(site: SiteSettings, plan: Plan, asks: bool) -> Iterator[str]:
    """What the server learns besides the method's messages."""
    for facts in tell(site, plan.data, plan.privacy):
        train, val, test = facts.sizes
        sizes = "no sizes" if plan.privacy.hides_sizes else f"{train} training, {val} validation, {test} test samples"
        outputs = counted(facts.classes, kind_of(facts.kind).noun)
        yield f"client {facts.client}: {sizes}; samples of shape {list(facts.shape)}, {outputs}"
        if facts.labels is not None:
            yield f"client {facts.client}: how many samples of each class it has (allow.labels)"
    if site.allow.sums and not plan.privacy.protects:
        targets = kind_of(plan.data.task).quantitative and plan.experiment.target_range is None
        what = "features, and of the targets" if targets else "features"
        yield f"sums, counts and categories of the {what}, if there is preprocessing to fit (allow.sums)"
    if asks and site.allow.labels:
        yield "in each round, which classes a client has"
    moments = plan.experiment.evaluate.moments
    if site.allow.tells_scores and moments:
        yield f"scores of models on the clients' own samples, at {', '.join(moments)} (allow.scores)"
    yield "in which rounds the site took part, and how long it took"
