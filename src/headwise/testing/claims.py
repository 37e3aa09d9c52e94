"""Checks of what a method says about itself: its card, its formulas, its options, its privacy, its documentation."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import torch
from torch import Tensor

from ..contract.formulas import evaluate
from ..contract.method import Reply, record_types
from ..engine.client.client_bench import ClientBench
from ..engine.plan import Plan
from ..engine.server_bench import ServerBench
from ..errors import ConfigError
from ..methods.standalone import Standalone
from ..models.split import SplitModel
from ..params import Params, mean
from ..records import Nothing, Packed, Record, encode, fields_of, nbytes, pack, unpack
from ..settings.fields import build, check, convert, field_help, field_types
from .behaviour import need
from .toy import FEATURES, AnyMethod, Trace, federation, play, reference, remember, toy_plan
from .watching import Training, record_messages, up_of

SAME_SUMS = 1e-4
"""rounding moves the server's state by at most 1e-5, a real difference by more than 1e-3"""
UNEQUAL = (10, 20, 40)
"""samples of the clients whose messages are replaced with their mean"""


def card(method: AnyMethod) -> None:
    """It is a frozen dataclass with valid settings, and what its card says agrees with its records."""
    cls = type(method)
    records = record_types(cls)
    frozen = "__dataclass_params__" in vars(cls) and vars(cls)["__dataclass_params__"].frozen
    need(frozen, "it must be a dataclass with frozen=True: its fields are its hyperparameters")
    check(method)
    for name in ("family", "travels", "stays"):
        need(bool(getattr(cls, name)), f"its class variable {name!r} is empty")
    for name, kept, what in (
        ("stays", records.client is not Nothing, f"keeps {records.client.__name__}"),
        (
            "travels",
            records.down is not Nothing or records.up is not Nothing,
            f"sends {records.down.__name__} down and {records.up.__name__} up",
        ),
    ):
        need((getattr(cls, name) != "nothing") == kept, f"{name} is {getattr(cls, name)!r}, but it {what}")
    for preset in cls.presets.values():
        build(cls, preset)
    unknown = set(cls.uploaded_fields) - set(fields_of(records.client))
    need(not unknown, f"uploaded_fields names {sorted(unknown)}, which the client's record does not have")
    owners = (("me", records.client), ("server", records.server))
    strange = set(cls.shows) - {f"{owner}.{f}" for owner, record in owners for f in fields_of(record)}
    need(not strange, f"shows names {sorted(strange)}, which its records do not have")


def documentation(method: AnyMethod) -> None:
    """Its file cites the paper and links to it; its class says in one sentence what it does."""
    cls = type(method)
    text = sys.modules[cls.__module__].__doc__ or ""
    title = " ".join(text.split("\n\n")[0].split())
    need(re.match(r"\S[^—]* — \S", title) is not None, "its file must begin with a title: Name — authors, title, year.")
    published = cls.__module__.startswith("headwise.methods.") and cls is not Standalone
    need(not published or "https://" in text, "its file has no link to the paper")
    summary = (vars(cls).get("__doc__") or "").strip()
    one = summary.endswith(".") and "\n\n" not in summary and not re.search(r"[.!?]\s+[A-Z]", summary)
    need(one and not summary.startswith(f"{cls.__name__}("), "its class must have a docstring of one sentence")
    silent = [f.name for f in dataclasses.fields(method) if not field_help(cls).get(f.name)]  # pyright: ignore[reportArgumentType]
    need(not silent, f"write a string below {', '.join(silent)}: it is the option's help text")


def download_is_used(method: AnyMethod) -> None:
    """Every tensor and number of a download changes what some client sends, keeps or predicts.

    A client that drops a part of it, for example because its names differ, would seem to take part and train alone.
    """
    plan, _, trainings = record_messages(method)
    used = set[str]()
    for training in trainings:
        usual = _outcome(plan, training, training.job.down)
        for name, down in _change_each(training.job.down):
            used |= {name} if name not in used and _outcome(plan, training, down) != usual else set()
    last = [name for training in trainings if training.job.t == 2 for name, _ in _change_each(training.job.down)]
    unused = [name for name in dict.fromkeys(last) if name not in used]
    need(not unused, f"no client uses {', '.join(unused)} of its download")


def nothing_private(method: AnyMethod) -> None:
    """No private tensor of a client, and no row of one, appears in what it sends."""
    for variant in variants(method):
        plan, _, trainings = record_messages(variant)
        for training in trainings:
            if training.before is None:  # all start equal: one step later, two may be equal by chance
                continue
            known = [_bytes(t) for t in _list_known(plan, training)]
            sent = [_bytes(t) for t in pack(up_of(training)).tensors.values()]
            for name, (kind, piece) in _secrets(method, training):
                is_sent = any(kind == k and piece in s for k, s in sent)
                leaked = is_sent and not any(kind == k and piece in s for k, s in known)
                need(
                    not leaked,
                    f"client {training.job.client} sends its {name!r}, which is not among its `uploaded_fields`",
                )


def bytes_as_the_card_says(method: AnyMethod) -> None:
    """Every message has the size that the card says, whatever the options; a scalar is 4 bytes."""
    for variant in variants(method):
        plan, _, trainings = record_messages(variant)
        for training in trainings:
            values = letters(variant, plan, training.job.client)
            for way, record in (("down", training.job.down), ("up", up_of(training))):
                formula = getattr(type(method), f"traffic_{way}")
                if formula == "?":  # depends on the data
                    continue
                promised = 4 * evaluate(formula, values)
                counted = nbytes(record)
                text = (
                    f"traffic_{way} is {formula!r}, which is {promised:g} bytes, but {counted} were sent by {variant}"
                )
                need(promised == counted, text)


def sums_as_the_card_says(method: AnyMethod) -> None:
    """The server needs exactly what `sums` says, whatever the options.

    A run's robust rules are another matter: they look at every message.
    """
    for declared in sorted({m.needs() for m in variants(method)}):
        enough = set[str].intersection(*(_find_sufficient_sums(m) for m in variants(method) if m.needs() == declared))
        sufficient = sorted(enough - {"labels"} or enough or {"none"})
        need(
            declared in sufficient,
            f"sums is {declared!r}, but what the server needs is {' or '.join(map(repr, sufficient))}",
        )


def every_hyperparameter_counts(method: AnyMethod) -> None:
    """Every option has another value that changes the server's state, a client's state or a prediction.

    Each option is also tried with other choices of all others: it may only matter together with one of them.
    """

    def differs(name: str, value: object) -> bool:
        return any(reference(a) != reference(b) for a, b in neighbours(method, name, value))

    for field in dataclasses.fields(method):  # pyright: ignore[reportArgumentType]
        choices, numbers = alternatives(method, field.name)
        need(bool(choices or numbers), f"no other value of {field.name!r} is known: give it a range or a Literal type")
        dead = [v for v in choices if not differs(field.name, v)]
        need(not dead, f"{field.name} = {dead and dead[0]!r} changes nothing")
        alive = not numbers or any(differs(field.name, v) for v in numbers)
        need(alive, f"no value of {field.name!r} changes anything")


def differs_from_standalone(method: AnyMethod) -> None:
    """A method that communicates gives other models than local training, and other clients' data matter."""
    if type(method).travels == "nothing":
        return
    mine, alone = (
        remember("losses", m, lambda m=m: _losses(play(toy_plan(m, every=1)).trace())) for m in (method, Standalone())
    )
    need(any(abs(mine[k] - alone[k]) > 1e-6 for k in mine), "all clients end up with the models they would have alone")
    spoilt = _losses(play(toy_plan(method, data=federation(spoilt=0), every=1)).trace())
    others = [k for k in mine if k[1] != 0]
    need(any(mine[k] != spoilt[k] for k in others), "what one client holds makes no difference to any other")


def letters(method: AnyMethod, plan: Plan, client: int) -> Mapping[str, Any]:
    """The values of the card's letters at this client, and the method's own options."""
    model: SplitModel = plan.models[client % len(plan.models)]
    with torch.no_grad():
        width = model.body(torch.zeros(2, FEATURES)).shape[1]
    return vars(method) | {
        "P": model.params().numel(),
        "F": model.params("body").numel(),
        "L": model.params("head").numel(),
        "K": width,
        "C": plan.data.task.classes,
        "c": len(plan.data.client(client).train.y.unique()),
    }


def _find_sufficient_sums(method: AnyMethod) -> set[str]:
    """The kinds of sums from which the server gets the same state as from the messages themselves."""
    plan, recorder, _ = record_messages(method)
    kinds = _find_sufficient_sums_in(method, 2, recorder.ended[0].progress.server)
    if method.draws_everyone(1, plan.experiment.rounds):  # a round that is not like the others
        kinds &= _find_sufficient_sums_in(method, 1, method.server_init(ServerBench(plan, 0)))
    return kinds


def _find_sufficient_sums_in(method: AnyMethod, t: int, server: Record) -> set[str]:
    plan, _, trainings = record_messages(method)
    rng = torch.Generator().manual_seed(1)
    ups = [up_of(v) for v in trainings if v.job.t == t][: len(UNEQUAL)]

    def ends(replies: Sequence[Reply[Any]]) -> Params:
        return Params(pack(method.aggregate(server, replies, ServerBench(plan, t))).tensors)

    kinds = (
        {"labels"}
        if _measure_difference(*(ends(_same_sums(ups[0], seed)) for seed in (1, 2))) < SAME_SUMS
        else set[str]()
    )
    moved = [Packed({k: _perturb(t, rng) for k, t in pack(up).tensors.items()}, pack(up).scalars) for up in ups]
    replies = [Reply(c, unpack(type(ups[0]), m), n) for c, (m, n) in enumerate(zip(moved, UNEQUAL, strict=True))]
    for name, weights in (("samples", UNEQUAL), ("clients", (1,) * len(UNEQUAL))):
        average = _mean(moved, weights)
        if average is None:
            continue
        alike = [dataclasses.replace(r, up=unpack(type(r.up), average)) for r in replies]
        kinds |= {name} if _measure_difference(ends(replies), ends(alike)) < SAME_SUMS else set()
    return kinds


def _mean(items: Sequence[Packed], weights: Sequence[int]) -> Packed | None:
    """Their weighted mean; None unless all have the same layout and the same scalars."""
    kinds = [({k: (t.dtype, t.shape) for k, t in item.tensors.items()}, item.scalars) for item in items]
    if any(kind != kinds[0] for kind in kinds):
        return None
    return Packed(dict(mean((Params(i.tensors) for i in items), weights)), items[0].scalars)


def _measure_difference(a: Params, b: Params) -> float:
    """The largest difference between two server states."""
    if {k: t.shape for k, t in a.items()} != {k: t.shape for k, t in b.items()}:
        return float("inf")
    return max((float((t.double() - b[k].double()).abs().max()) for k, t in a.items() if t.numel()), default=0.0)


def _perturb(t: Tensor, rng: torch.Generator) -> Tensor:
    return t + torch.randn(t.shape, generator=rng) if t.is_floating_point() else t


def _same_sums(record: Record, seed: int) -> list[Reply[Any]]:
    """Three random messages that add up to three times this one."""
    tensors, scalars = pack(record)
    rng = torch.Generator().manual_seed(seed)
    moves = {k: torch.randn(3, *t.shape, generator=rng) for k, t in tensors.items() if t.is_floating_point()}
    moves |= {k: torch.randn(3, generator=rng) for k, v in scalars.items() if isinstance(v, float)}
    shifts = {k: move - move.mean(0) for k, move in moves.items()}
    replies: list[Reply[Any]] = []
    for c in range(3):
        moved = {k: t + shifts[k][c] if k in shifts else t for k, t in tensors.items()}
        numbers = {k: v + float(shifts[k][c]) if isinstance(v, float) else v for k, v in scalars.items()}
        replies.append(Reply(c, unpack(type(record), Packed(moved, numbers)), 10))
    return replies


def _change_each(record: Record) -> Iterator[tuple[str, Record]]:
    """This record with another value in one of its tensors or numbers, for each of them; whole numbers stay."""
    tensors, scalars = pack(record)
    rng = torch.Generator().manual_seed(1)
    for name, t in tensors.items():
        if t.is_floating_point() and t.numel():
            yield name, unpack(type(record), Packed({**tensors, name: _perturb(t, rng)}, scalars))
    for name, value in scalars.items():
        if isinstance(value, float):
            yield name, unpack(type(record), Packed(tensors, {**scalars, name: value + 0.5}))


def _outcome(plan: Plan, training: Training, down: Record) -> tuple[bytes, ...]:
    """What a client sends, keeps and predicts with, before and after training, had it been sent this."""
    local = ClientBench(plan, training.job.client, training.job.t, purpose="fit", kept=Params(), trained=1)
    me = plan.method.client_init(local) if training.before is None else training.before
    before = plan.method.personalize(me, down, local)
    update = plan.method.local_update(me, down, local)
    x = torch.linspace(-2, 2, 3 * FEATURES).view(3, FEATURES)
    with torch.no_grad():
        scores = [model(x).numpy().tobytes() for model in (before, update.model)]
    return encode(update.up), encode(update.me), *scores


def _losses(trace: Trace) -> dict[tuple[int, int, str], float]:
    """Every measured loss, by round, client and moment."""
    lines = [json.loads(line) for line in trace.lines]
    scored = [(line, m) for line in lines for m in ("pre", "post") if line.get(m, {}).get("test")]
    return {(line["round"], line["client"], m): line[m]["test"]["loss"] for line, m in scored}


def _list_known(plan: Plan, training: Training) -> list[Tensor]:
    """What the server knows anyway: the initial values, and what it has just sent."""
    bench = ClientBench(plan, training.job.client, 0, purpose="init", kept=Params(), trained=0)
    first = plan.method.client_init(bench)
    initial = [t for m in plan.models for t in m.state().values()]
    return [*initial, *pack(first).tensors.values(), *pack(training.job.down).tensors.values()]


def _secrets(method: AnyMethod, training: Training) -> Iterator[tuple[str, tuple[torch.dtype, bytes]]]:
    """A client's private tensors before and after training, whole and row by row; constants are not secret."""
    records: list[Record] = [r for r in (training.before, training.after) if r is not None]
    for name, t in (item for r in records for item in pack(r).tensors.items()):
        field = name.split("/")[0]
        if field in type(method).uploaded_fields:
            continue
        rows = t if t.ndim > 1 and t.is_floating_point() else ()
        for piece in [t, *rows]:
            if piece.numel() and bool((piece != piece.flatten()[0]).any()):
                yield field, _bytes(piece)


def _bytes(t: Tensor) -> tuple[torch.dtype, bytes]:
    return t.dtype, t.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def alternatives(method: AnyMethod, name: str) -> tuple[list[Any], list[Any]]:
    """An option's other choices, each of which must matter, and other numbers, at least one of which must."""
    kind = field_types(type(method))[name]
    value = getattr(method, name)
    choices = [v for leaf in _leaves(kind) for v in _choices(leaf) if v != value]
    numbers = [v for leaf in _leaves(kind) for v in _numbers(leaf, value) if v != value and _is_allowed(v, kind)]
    return choices, list(dict.fromkeys(numbers))


def variants(method: AnyMethod) -> Iterator[AnyMethod]:
    """The method as given, with each preset, and with each other choice of each option."""
    yield from _contexts(method, "")


def neighbours(method: AnyMethod, name: str, value: object) -> Iterator[tuple[AnyMethod, AnyMethod]]:
    """Pairs of methods that differ in this option only: as given, with each preset, with each choice elsewhere."""
    for base in _contexts(method, name):
        yield from ((base, other) for other in _with(base, name, value))


def _contexts(method: AnyMethod, name: str) -> Iterator[AnyMethod]:
    yield method
    for preset in type(method).presets.values():
        yield dataclasses.replace(method, **preset)  # pyright: ignore[reportArgumentType]
    for field in dataclasses.fields(method):  # pyright: ignore[reportArgumentType]
        for choice in alternatives(method, field.name)[0] if field.name != name else ():
            yield from _with(method, field.name, choice)


def _with(method: AnyMethod, name: str, value: object) -> list[AnyMethod]:
    """The method with this option, or nothing if it does not allow that together with the others."""
    try:
        return [dataclasses.replace(method, **{name: value})]  # pyright: ignore[reportArgumentType]
    except (ConfigError, ValueError):
        return []


def _leaves(kind: Any) -> list[Any]:
    """The plain types that a type is made of."""
    origin = get_origin(kind)
    args = get_args(kind)
    if origin is Annotated:
        return _leaves(args[0])
    return [leaf for k in args for leaf in _leaves(k)] if origin in (Union, types.UnionType) else [kind]


def _choices(kind: Any) -> tuple[Any, ...]:
    if get_origin(kind) is Literal:
        return get_args(kind)
    return {bool: (False, True), types.NoneType: (None,)}.get(kind, ())


def _numbers(kind: Any, value: Any) -> list[Any]:
    now = 1 if value is None or isinstance(value, str) else value
    if kind is int:
        return [now + 1, now - 1, 2 * now, 0, 1]
    if kind is float:
        return [2.0 * now, now / 2, now + 0.1, now - 0.1, 100.0 * now, now / 100, 0.0, 1.0]
    return []


def _is_allowed(value: Any, kind: Any) -> bool:
    try:
        convert(value, kind, "value")
    except ConfigError:
        return False
    return True
