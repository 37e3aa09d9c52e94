"""The command that runs a run again, from its manifest alone."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from ..disk.jsontext import to_toml
from ..runs.query import Run
from ..settings.experiment import Experiment
from ..settings.fields import changed

CHOICES = ("method", "data", "partition", "model", "server_model")
"""written whole, with all their options"""


def command(run: Run) -> str:
    """What to type for the same bits; settings that are as usual are left out."""
    usual, now = Experiment().plain(), run.manifest["experiment"]
    chosen = [(name, now[name]) for name in CHOICES if now.get(name)]
    others = _leaves(changed({k: v for k, v in now.items() if k not in CHOICES}, usual))
    return shlex.join(["headwise", "run", *(w for k, v in chosen + others for w in ("--set", f"{k}={_toml(v)}"))])


def _leaves(tree: Mapping[str, Any], at: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in tree.items():
        found += _leaves(value, f"{at}{key}.") if isinstance(value, Mapping) else [(f"{at}{key}", value)]
    return found


def _toml(value: Any) -> str:
    """A value as TOML writes it on one line: JSON, but for tables, and for what TOML has no word for."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{to_toml(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return to_toml("none" if value is None else value)
