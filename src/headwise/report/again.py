"""The command that repeats a run, from its manifest."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from ..disk.jsontext import leaves, to_toml
from ..runs.query import Run
from ..settings.experiment import Experiment
from ..settings.fields import changed

CHOICES = ("method", "data", "partition", "model", "server_model")
"""written in full, with all options"""


def command(run: Run) -> str:
    """The command that gives the same bits; omits settings that have their defaults."""
    usual, now = Experiment().plain(), run.manifest["experiment"]
    chosen = [(name, now[name]) for name in CHOICES if now.get(name)]
    others = leaves(changed({k: v for k, v in now.items() if k not in CHOICES}, usual))
    return shlex.join(["headwise", "run", *(w for k, v in [*chosen, *others] for w in ("--set", f"{k}={_toml(v)}"))])


def _toml(value: Any) -> str:
    """A value in TOML on one line; None, which TOML lacks, becomes 'none'."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{to_toml(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return to_toml("none" if value is None else value)
