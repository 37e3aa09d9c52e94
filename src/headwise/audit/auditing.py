"""An audit: what leaves the clients of a run, and what each attack makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..errors import RunError
from ..seeds import seed_of
from . import features, gradients, labels, members
from .fields import Field, fields
from .scene import Scene, scene_of
from .scores import Finding


@dataclass(frozen=True)
class Audit:
    """What was found out about a run."""

    method: str
    t: int
    """rounds that were done"""
    private: bool
    """whether what leaves its clients is protected"""
    fields: list[Field]
    findings: list[Finding]


def audit(folder: Path, *, data_dir: Path | None = None, clients: int = 10, seed: int = 0) -> Audit:
    """Audit the run in this folder; so many of its clients, drawn from the seed, are attacked."""
    with scene_of(folder, data_dir) as scene:
        if scene.plan.data.x.dtype != torch.float32:
            raise RunError(f"{folder} is about texts, but only samples of numbers can be audited.")
        chosen = _chosen(scene, clients, seed)
        found = [
            *gradients.attack(scene, chosen, seed),
            *features.attack(scene, chosen),
            *labels.attack(scene, chosen),
            *members.attack(scene, chosen),
        ]
        private = scene.plan.privacy.protects
        return Audit(scene.run.method, scene.t, private, fields(scene), found)


def _chosen(scene: Scene, count: int, seed: int) -> Sequence[int]:
    rng = torch.Generator().manual_seed(seed_of(seed, "audited clients"))
    return sorted(torch.randperm(len(scene.plan.data), generator=rng)[:count].tolist())
