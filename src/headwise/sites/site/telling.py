"""A review in plain words, for whoever decides about the site."""

from __future__ import annotations

from collections.abc import Iterator

from ...settings.choices import Choice
from .review import Review
from .status import privacy_line
from .trial import ClientTraffic


def lines(found: Review) -> Iterator[str]:
    experiment = found.experiment
    share = experiment.sampling.ratio
    asked = "each client trains in every round" if share == 1 else f"{share:.0%} of the clients train in each round"
    yield "What would run"
    yield f"  method: {_choice(experiment.method)}"
    yield f"  network: {'; '.join(map(_choice, experiment.model))}"
    yield f"  rounds: {experiment.rounds}; {asked}"
    yield f"  stays here: {found.stays}"
    yield ""
    yield "What would leave"
    yield from (f"  {line}" for line in _leaving(found))
    yield ""
    yield "Privacy budget"
    yield from (f"  {line}" for line in _budget(found))
    yield ""
    yield "What it could reveal"
    yield from (f"  {line}" for line in _revealed(found))
    yield ""
    yield from _decision(found)


def _leaving(found: Review) -> Iterator[str]:
    masked = found.experiment.secure.sums
    for name, what in found.sent.items():
        yield f"{name}: {what}"
    if found.refusals is None:
        yield "how many bytes depends on the data: give --site"
    for each in found.traffic:
        yield _bytes(each, found.experiment.rounds)
    if masked:
        yield "masked: the server learns the sum over all sites, but no single message; keys and shares come on top"
    yield from (f"told: {line}" for line in found.told)


def _bytes(each: ClientTraffic, rounds: int) -> str:
    parts = ", ".join(f"{name} {size:,}" for name, size in each.fields.items())
    up = sum(each.fields.values())
    once = f", and {each.census:,} once before" if each.census else ""
    total = f"{'about' if each.varies else 'at most'} {up * rounds + each.census:,} bytes in all"
    grows = "; messages vary, as rehearsed with few clients and rounds" * each.varies
    return f"client {each.client}: {up:,} bytes a round ({parts}){once}, {total}; it gets {each.down:,} a round{grows}"


def _choice(choice: Choice) -> str:
    options = ", ".join(f"{k}={v}" for k, v in choice.options.items())
    return f"{choice.name} ({options})" if options else choice.name


def _budget(found: Review) -> Iterator[str]:
    promise = found.promise
    if promise is None:
        protects = found.experiment.privacy.clip is not None
        more = "can't be computed here" if found.refusals else "needs the site's data: give --site"
        yield f"the study has differential privacy; its epsilon {more}" if protects else "none"
    elif not promise:
        yield "none: nothing limits what can be learned from what leaves"
    else:
        unit = "an example" if promise["unit"] == "example" else "the client"
        yield f"the whole run spends epsilon {promise['epsilon']:.3g} of {unit} at delta {promise['delta']:g}"
        if promise["source"] != "system":
            yield "but its noise comes from the seed, which the server knows: it protects nobody"
    yield from map(privacy_line, found.spent)


def _revealed(found: Review) -> Iterator[str]:
    name = found.experiment.method.name.partition("@")[0]
    if not found.like:
        yield f"unknown: messages like those of {name} were not audited"
        return
    if found.like != name:
        yield f"{name} was not audited; {found.like}, which sends things of the same kind, was: a guide, not a limit"
    strength = found.attacks[0].epsilon
    added = ", which this study adds" if found.experiment.privacy.clip is not None else ""
    noise = f"without noise{added}" if strength is None else f"with noise, at epsilon {strength:g} of a client"
    yield f"found by the audit of {found.like} on public data, {noise} (1 is everything):"
    for each in found.attacks:
        gain = "more than guessing" if each.score > each.guess else "no more than guessing"
        figures = f"{each.score:.2f}, guessing {each.guess:.2f}; {each.measure}"
        yield f"{each.attack}, knowing {each.knowing}: {gain} ({figures})"
    if found.experiment.secure.sums:
        yield "these attacks read single messages, which masks hide from the server"


def _decision(found: Review) -> Iterator[str]:
    if found.refusals is None:
        yield "Whether a site permits this depends on its site.toml: give --site"
    elif not found.refusals:
        yield "This site permits it; nothing was sent"
    else:
        yield "This site refuses it; nothing was sent"
        yield from (f"  {r.setting + ': ' if r.setting else ''}{r.why}" for r in found.refusals)
