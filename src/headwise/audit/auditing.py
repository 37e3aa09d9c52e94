"""Audits a run: what its clients send, and what each attack recovers from it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean

import torch

from ..contract.method import record_types
from ..errors import RunError
from ..records import Record, fields_of
from ..seeds import seed_of
from ..settings.fields import field_help, summary_of
from ..tasks.registry import kind_of
from .findings import Finding
from .inference import find_requested_shares, infer_labels, infer_members
from .reconstruction import invert_features, invert_gradients
from .scene import Scene, make_message, scene_of


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
    up = record_types(type(scene.plan.method)).up
    rows = scene.run.rounds
    failed = [{c for who in row.get("failed", {}).values() for c in who} for row in rows]
    replies = sum(len(row.get("clients", ())) for row in rows) - sum(map(len, failed))
    uploads = [by_field["up"] for row in rows if (by_field := row.get("fields"))]
    sizes = {name: sum(ups.get(name, 0) for ups in uploads) / max(replies, 1) for name in fields_of(up)}
    disclosed = [Field(name, _describe_field(up, name), size, True) for name, size in sizes.items()]
    label_counts = [
        len(shares.nonzero())
        for c in range(len(scene.plan.data))
        if (shares := find_requested_shares(scene, c)) is not None
    ]
    if label_counts:
        what = "the labels that it holds, to be sent what belongs to them"
        disclosed.append(Field("(requested)", what, 4 * fmean(label_counts), True))
    many = max(range(len(scene.plan.data)), key=lambda c: len(scene.train(c)))
    same = make_message(scene, many).n != len(scene.train(many))
    what = "the same number for everybody" if same else "how many samples it trained on"
    disclosed.append(Field("(samples)", what, 4.0, True))
    return [*disclosed, Field("(presence)", "that it took part in this round, or failed", 0.0, True)]


def _describe_field(record: type[Record], name: str) -> str:
    """The docstrings of the record and of the field."""
    text = summary_of(record)
    more = field_help(record).get(name)
    return f"{text}; {name}: {more}" if more else text


@dataclass(frozen=True)
class Audit:
    method: str
    task: str
    t: int
    """completed rounds"""
    private: bool
    """whether a privacy mechanism protects what clients send"""
    fields: list[Field]
    findings: list[Finding]


def audit(folder: Path, *, data_dir: Path | None = None, clients: int = 10, seed: int = 0) -> Audit:
    """Audit the run in this folder; attacks `clients` of its clients, drawn from the seed."""
    with scene_of(folder, data_dir) as scene:
        kind = scene.plan.data.task.kind
        if scene.plan.data.x.dtype != torch.float32:
            raise RunError(f"{folder} was trained on texts, but only runs on images or features can be audited.")
        rng = torch.Generator().manual_seed(seed_of(seed, "audited clients"))
        chosen = sorted(torch.randperm(len(scene.plan.data), generator=rng)[:clients].tolist())
        findings = infer_members(scene, chosen)
        if kind_of(kind).one_class:  # the others take a step of cross-entropy apart
            more = invert_gradients(scene, chosen, seed), invert_features(scene, chosen), infer_labels(scene, chosen)
            findings = [*chain(*more), *findings]
        return Audit(scene.run.method, kind, scene.t, scene.plan.privacy.protects, fields(scene), findings)
