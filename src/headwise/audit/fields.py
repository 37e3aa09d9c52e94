"""What a client discloses: every field of its message, and what it reveals besides."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from statistics import fmean

from ..contract.method import record_types
from ..records import Record, fields_of
from ..settings.fields import field_help
from .labels import asked_for
from .scene import Scene, sent


@dataclass(frozen=True)
class Field:
    """Something that a client discloses to the server."""

    name: str
    what: str
    bytes: float
    """per client and round"""
    per_client: bool
    """whether the server can tell which client it came from"""


def fields(scene: Scene) -> list[Field]:
    """Everything that a client of this run discloses to the server."""
    up, rows = record_types(type(scene.plan.method)).up, scene.run.rounds
    failed = [{c for who in row.get("failed", {}).values() for c in who} for row in rows]
    replies = sum(len(row.get("clients", ())) for row in rows) - sum(map(len, failed))
    told = [by_field["up"] for row in rows if (by_field := row.get("fields"))]
    sizes = {name: sum(ups.get(name, 0) for ups in told) / max(replies, 1) for name in fields_of(up)}
    found = [Field(name, _what(up, name), size, True) for name, size in sizes.items()]
    asked = [len(shares.nonzero()) for c in range(len(scene.plan.data)) if (shares := asked_for(scene, c)) is not None]
    if asked:
        found.append(
            Field("(asked for)", "the labels that it holds, to be sent what belongs to them", 4 * fmean(asked), True)
        )
    many = max(range(len(scene.plan.data)), key=lambda c: len(scene.train(c)))
    same = sent(scene, many).n != len(scene.train(many))
    told = "the same number for everybody" if same else "how many samples it trained on"
    found.append(Field("(samples)", told, 4.0, True))
    return [*found, Field("(presence)", "that it took part in this round, or failed", 0.0, True)]


def _what(record: type[Record], name: str) -> str:
    """The docstrings of the record and of the field."""
    said, more = " ".join((inspect.getdoc(record) or "").split()).rstrip("."), field_help(record).get(name)
    return f"{said}; {name}: {more}" if more else said
