"""Runs that should be the same: one is interrupted, and what both must have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headwise.engine.events import Event, RoundEnded
from headwise.runs.query import Run

CLOCKS = ("seconds", "memory")


def rows(run: Run | Path, *without: str) -> list[dict[str, Any]]:
    """Its rounds, without the time and memory that they took, nor what else two runs do not share."""
    found = run if isinstance(run, Run) else Run(run)
    return [{k: v for k, v in row.items() if k not in (*CLOCKS, *without)} for row in found.rounds]


def stop(event: Event) -> None:
    """An observer that ends a run after its next round, as a killed one would."""
    if isinstance(event, RoundEnded):
        raise KeyboardInterrupt
