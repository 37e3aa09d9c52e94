"""Audits a run: what its clients send, and what each attack recovers from it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch

from ..errors import RunError
from ..seeds import seed_of
from . import features, gradients, labels, members
from .fields import Field, fields
from .scene import scene_of
from .scores import Finding


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
        found = members.attack(scene, chosen)
        if kind == "classification":  # the others take a step of cross-entropy apart
            more = gradients.attack(scene, chosen, seed), features.attack(scene, chosen), labels.attack(scene, chosen)
            found = [*chain(*more), *found]
        return Audit(scene.run.method, kind, scene.t, scene.plan.privacy.protects, fields(scene), found)
