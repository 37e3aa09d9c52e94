"""`headwise site review`: what a study would do at this site, before anything is allowed. Nothing is sent.

`review` computes it, and `Review.lines` describes it in plain words, for whoever decides about the site.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...app import registry
from ...audit.findings import KnownAttack, read_known_audits, strongest
from ...contract.method import record_types
from ...data.federated import Clients
from ...engine.driver import drive
from ...engine.executors.local import RecordingExecutor
from ...engine.host import use_one_thread
from ...engine.plan import Plan
from ...errors import HeadwiseError, pluralize
from ...params import Params
from ...privacy.accountant import account
from ...records import Record, fields_of, nbytes, nbytes_by_field, pack
from ...settings.choices import Choice
from ...settings.experiment import Experiment
from ...settings.fields import field_help, summary_of
from ...tasks.registry import kind_of
from ..facts import experiment_hash, resolve_for_sites, write_for_sites
from .ledger import Ledger, PrivacySpent, privacy_spent
from .own_data import own_data, report_facts
from .policy import Policy
from .site_file import Allow, SiteSettings, read_site

TOGETHER = (("experiments", "signer"), ("epsilon", "delta", "epsilon_total"))
"""settings of a site that only mean something together"""
ROUNDS = 2
"""that are rehearsed: some messages grow after the first"""
OTHERS = 20
"""most clients in a rehearsal"""
SAMPLES = 16
"""of each client at another site, in a rehearsal"""
MASKED = 8
"""bytes of a masked number, whatever its type was"""


@dataclass(frozen=True)
class Refusal:
    setting: str
    """of site.toml; empty if no change of what is allowed would help"""
    why: str


@dataclass(frozen=True)
class ClientTraffic:
    """What one client would exchange with the server."""

    client: int
    fields: Mapping[str, int]
    """bytes of each field of its upload in a round, the largest seen"""
    census: int
    """bytes of its answer before the first round"""
    down: int
    """bytes that it gets in a round, the largest seen"""
    varies: bool
    """whether rounds differed, or there are more clients than were rehearsed: these numbers are then no limit"""


@dataclass(frozen=True)
class Review:
    experiment: Experiment
    sent: Mapping[str, str]
    """each field of the method's upload, and what it is"""
    stays: str
    announced: tuple[str, ...] = ()
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

    def to_plain(self) -> dict[str, Any]:
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "experiment"}
        for name in ("traffic", "attacks", "refusals"):
            values[name] = values[name] and [asdict(each) for each in values[name]]
        values["spent"] = [each._asdict() for each in self.spent]
        return {"method": self.experiment.method.name, "rounds": self.experiment.rounds, **values}

    def lines(self) -> Iterator[str]:
        yield "What would run"
        yield from _indent(_describe_run(self))
        yield ""
        yield "What would leave"
        yield from _indent(_describe_uploads(self))
        yield ""
        yield "Privacy budget"
        yield from _indent(_describe_budget(self))
        yield ""
        yield "What it could reveal"
        yield from _indent(_describe_attacks(self))
        yield ""
        yield from _describe_decision(self)


def review(study: Experiment, home: Path | None) -> Review:
    """Review this experiment for the site in `home`; without one, only what holds at every site."""
    experiment = resolve_for_sites(study)
    method = type(registry.make("method", experiment.method))
    up = record_types(method).up
    sent = {name: field_help(up).get(name, summary_of(up)) for name in fields_of(up)}
    known = experiment.method.name.partition("@")[0]
    like = known if known in read_known_audits() else ""
    bare = Review(experiment, sent, method.stays, like=like, attacks=strongest(like, None) if like else ())
    if home is None:
        return bare
    site = read_site(home / "site.toml")
    text = write_for_sites(experiment)
    opened = Policy(replace(site, allow=Allow(largest=site.allow.largest)), home)
    try:
        plan = opened.plan(text)
    except HeadwiseError as error:
        return replace(bare, refusals=(Refusal(_find_refusing_setting(opened, text), str(error)),))
    promise = account(plan)
    rehearsed = [rehearse_client(plan, own.id) for own in site.clients]
    like = like or kind_of_message(plan, rehearsed[0].message)
    shielded = (promise.get("unit"), promise.get("source")) == ("client", "system")  # as in the audit
    needs_classes = rehearsed[0].asks and not plan.privacy.protects
    return replace(
        bare,
        announced=tuple(_list_announced(site, plan, needs_classes)),
        traffic=tuple(each.traffic for each in rehearsed),
        promise={k: v for k, v in promise.items() if k in ("epsilon", "delta", "unit", "source")},
        spent=tuple(privacy_spent(home / "site.toml")),
        like=like,
        attacks=strongest(like, promise["epsilon"] if shielded else None) if like else (),
        refusals=tuple(_find_refusals(site, plan, home, text, needs_classes)),
    )


def _find_refusing_setting(opened: Policy, text: str) -> str:
    """The setting that still refuses when all others allow everything: only the limit on networks can."""
    try:
        experiment = opened.permit(text)
        task = own_data(opened.settings, opened.home, experiment).task
    except HeadwiseError:
        return ""
    try:
        opened.check_networks(experiment, task)
    except HeadwiseError:
        return "allow.largest"
    return ""


def _find_refusals(site: SiteSettings, plan: Plan, home: Path, text: str, needs_classes: bool) -> Iterator[Refusal]:
    """The settings that refuse, each tried by itself."""
    for group in (("methods",), ("fields",), ("plain",), *TOGETHER):
        alone = replace(site, allow=Allow(**{name: getattr(site.allow, name) for name in group}))
        policy = Policy(alone, home)
        try:
            policy.permit(text)
            policy.check_privacy(plan)
            Ledger(alone, home).check_left(plan, experiment_hash(plan.experiment))
        except HeadwiseError as error:
            yield Refusal(f"allow.{group[0]}", str(error))
    if needs_classes and not site.allow.labels:
        name = plan.experiment.method.name
        yield Refusal(
            "allow.labels", f"{name} must know which classes each client has, but this site does not share them."
        )


def _list_announced(site: SiteSettings, plan: Plan, needs_classes: bool) -> Iterator[str]:
    """What the server learns besides the method's messages."""
    for facts in report_facts(site, plan.data, plan.privacy):
        train, val, test = facts.sizes
        sizes = "no sizes" if plan.privacy.hides_sizes else f"{train} training, {val} validation, {test} test samples"
        outputs = pluralize(facts.classes, kind_of(facts.kind).noun)
        yield f"client {facts.client}: {sizes}; samples of shape {list(facts.shape)}, {outputs}"
        if facts.labels is not None:
            yield f"client {facts.client}: how many samples of each class it has (allow.labels)"
    if site.allow.sums and not plan.privacy.protects:
        targets = kind_of(plan.data.task).quantitative and plan.experiment.target_range is None
        what = "features, and of the targets" if targets else "features"
        yield f"sums, counts and categories of the {what}, if there is preprocessing to fit (allow.sums)"
    if needs_classes and site.allow.labels:
        yield "in each round, which classes a client has"
    moments = plan.experiment.evaluate.moments
    if site.allow.sends_scores and moments:
        yield f"scores of models on the clients' own samples, at {', '.join(moments)} (allow.scores)"
    yield "in which rounds the site took part, and how long it took"


@dataclass(frozen=True)
class Rehearsed:
    traffic: ClientTraffic
    message: Record
    asks: bool
    """whether the server must know which classes clients have"""


def rehearse_client(plan: Plan, client: int) -> Rehearsed:
    """Train this client on its own samples, among clients with a few copies of them in place of the other sites'."""
    count = min(len(plan.data), max(OTHERS, len(plan.models)))
    own = client if client < count else client % len(plan.models)
    train = replace(plan.experiment.train, epochs=1, drop_last=False)
    data = _place_among(plan.data, client, own, count)
    small = replace(plan, data=data, epochs_accounted=None).with_settings(train=train).for_rehearsal()
    executor = RecordingExecutor(small)
    with use_one_thread():
        drive(small, executor, rounds=ROUNDS)
    mine = [(job, answer) for job, answer in executor.handled if job.client == own]
    downs = [job.down for job, _ in mine if job.kind == "fit"]
    ups = [answer.message for job, answer in mine if job.kind == "fit"]
    census = sum(nbytes(answer.message) for job, answer in mine if job.kind == "census")
    sizes = [_sizes(plan, up) for up in ups]
    largest = {name: max(each[name] for each in sizes) for name in sizes[0]}
    varies = count < len(plan.data) or any(each != largest for each in sizes)
    traffic = ClientTraffic(client, largest, census, max(map(nbytes, downs)), varies)
    return Rehearsed(traffic, ups[-1], bool(data.requests))


@dataclass(frozen=True)
class _WatchedClients(Clients):
    """Clients that record whose labels the server needs."""

    requests: list[int] = field(default_factory=list[int])

    def labels(self, c: int) -> tuple[int, ...]:
        self.requests.append(c)
        return super().labels(c)


def _place_among(data: Clients, client: int, own: int, count: int) -> _WatchedClients:
    mine = data.client(client).train
    kept = [len(mine) if c == own else min(len(mine), SAMPLES) for c in range(count)]
    x, y = (torch.cat([part[:n] for n in kept]) for part in (mine.x, mine.y))
    return _WatchedClients(data.task, x, y, np.cumsum(kept).repeat(3).reshape(-1, 3))


def _sizes(plan: Plan, up: Record) -> dict[str, int]:
    sizes = nbytes_by_field(up)
    if plan.experiment.secure.sums:
        sizes = dict.fromkeys(sizes, 0)
        for name, t in pack(up).tensors.items():
            sizes[name.split("/")[0]] += MASKED * t.numel()
    return sizes


def kind_of_message(plan: Plan, up: Record) -> str:
    """The audited method that sends the same kind of message: a head, only a body, or class means."""
    head = {f"head.{name}" for name, _ in plan.common.head.named_parameters()}
    sent = [value for value in vars(up).values() if isinstance(value, Params)]
    network = [set(value) for value in sent if set(value) <= set(plan.common.state())]
    if any(names & head for names in network):
        return "fedavg"
    if any(network):
        return "fedper"
    return "fedgh" if {"labels", "means"} <= vars(up).keys() else ""


def _indent(lines: Iterator[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def _describe_run(review: Review) -> Iterator[str]:
    experiment = review.experiment
    share = experiment.sampling.ratio
    yield f"method: {_describe_choice(experiment.method)}"
    yield f"network: {'; '.join(map(_describe_choice, experiment.model))}"
    who = "each client trains in every round" if share == 1 else f"{share:.0%} of the clients train in each round"
    yield f"rounds: {experiment.rounds}; {who}"
    yield f"stays here: {review.stays}"


def _describe_choice(choice: Choice) -> str:
    options = ", ".join(f"{k}={v}" for k, v in choice.options.items())
    return f"{choice.name} ({options})" if options else choice.name


def _describe_uploads(review: Review) -> Iterator[str]:
    for name, what in review.sent.items():
        yield f"{name}: {what}"
    if review.refusals is None:
        yield "how many bytes depends on the data: give --site"
    for each in review.traffic:
        yield _describe_bytes(each, review.experiment.rounds)
    if review.experiment.secure.sums:
        yield "masked: the server learns the sum over all sites, but no single message; keys and shares come on top"
    yield from (f"announced: {line}" for line in review.announced)


def _describe_bytes(each: ClientTraffic, rounds: int) -> str:
    parts = ", ".join(f"{name} {size:,}" for name, size in each.fields.items())
    up = sum(each.fields.values())
    once = f", and {each.census:,} once before" if each.census else ""
    total = f"{'about' if each.varies else 'at most'} {up * rounds + each.census:,} bytes in all"
    grows = "; messages vary, as rehearsed with few clients and rounds" if each.varies else ""
    return f"client {each.client}: {up:,} bytes a round ({parts}){once}, {total}; it gets {each.down:,} a round{grows}"


def _describe_budget(review: Review) -> Iterator[str]:
    promise = review.promise
    if promise is None:
        protects = review.experiment.privacy.clip is not None
        more = "can't be computed here" if review.refusals else "needs the site's data: give --site"
        yield f"the study has differential privacy; its epsilon {more}" if protects else "none"
    elif not promise:
        yield "none: nothing limits what can be learned from what leaves"
    else:
        unit = "an example" if promise["unit"] == "example" else "the client"
        yield f"the whole run spends epsilon {promise['epsilon']:.3g} of {unit} at delta {promise['delta']:g}"
        if promise["source"] != "system":
            yield "but its noise comes from the seed, which the server knows: it protects nobody"
    yield from (each.line() for each in review.spent)


def _describe_attacks(review: Review) -> Iterator[str]:
    name = review.experiment.method.name.partition("@")[0]
    if not review.like:
        yield f"unknown: messages like those of {name} were not audited"
        return
    if review.like != name:
        yield f"{name} was not audited; {review.like}, which sends messages of the same kind, was: a guide, not a limit"
    strength = review.attacks[0].epsilon
    added = ", which this study adds" if review.experiment.privacy.clip is not None else ""
    noise = f"without noise{added}" if strength is None else f"with noise, at epsilon {strength:g} of a client"
    yield f"found by the audit of {review.like} on public data, {noise} (1 is everything):"
    for each in review.attacks:
        gain = "more than guessing" if each.score > each.guess else "no more than guessing"
        figures = f"{each.score:.2f}, guessing {each.guess:.2f}; {each.measure}"
        yield f"{each.attack}, knowing {each.knowing}: {gain} ({figures})"
    if review.experiment.secure.sums:
        yield "these attacks read single messages, which masks hide from the server"


def _describe_decision(review: Review) -> Iterator[str]:
    if review.refusals is None:
        yield "Whether a site permits this depends on its site.toml: give --site"
    elif not review.refusals:
        yield "This site permits it; nothing was sent"
    else:
        yield "This site refuses it; nothing was sent"
        yield from (f"  {r.setting + ': ' if r.setting else ''}{r.why}" for r in review.refusals)
