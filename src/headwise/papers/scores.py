"""What a finished run says about a cell, in the units of the table."""

from __future__ import annotations

from statistics import median
from typing import Any

from ..log.metrics import ACCURACY
from ..log.schema import Seconds, figures
from ..runs.query import Run
from .cells import Ask
from .schema import Column, Moment

NEAR = 0.01
"""a run has converged in the first round this close to its best accuracy"""


def curve(run: Run, moment: Moment, metric: str) -> list[tuple[int, float]]:
    """Rounds and accuracies at this moment."""
    rows = [(row["round"], figures(row, moment)) for row in run.rounds]
    return [(t, found[metric]) for t, found in rows if metric in found]


def measured(run: Run, ask: Ask, column: Column, moment: Moment) -> float | None:
    """The best accuracy in percent, or the first round at the target; None if nothing was measured or reached."""
    points = curve(run, moment, ask.metric)
    if column.measure == "rounds":
        return next((float(t) for t, value in points if value >= (column.target or 0)), None)
    last = run.manifest["experiment"]["rounds"]
    values = [v for t, v in points if ask.window is None or t > last - ask.window]
    return max(values) * 100 if values else None


def effort(run: Run, ask: Ask, column: Column, moment: Moment) -> float | None:
    """Seconds per round without evaluation, rounds to convergence, or their product; None if it still rises."""
    pace = median(_seconds(row["seconds"]) for row in run.rounds if row["round"])
    if column.measure == "pace":
        return pace
    points = curve(run, moment, ask.metric)
    best = max((value for _, value in points), default=0.0)
    t = next((t for t, value in points[:-1] if value >= best - NEAR), None)
    return None if t is None else t * (pace if column.measure == "duration" else 1)


def _seconds(spent: Seconds) -> float:
    workers = {k: v for k, v in spent["workers"].items() if k not in ("evaluation", "idle")}
    return spent.get("server", 0.0) + sum(workers.values())


def floor(run: Run, ask: Ask) -> float | None:
    """What guessing each client's most frequent class scores, in percent, averaged as in the paper."""
    found: dict[str, Any] = run.manifest["partition"]["floor"]
    value = found["weighted" if ask.metric == ACCURACY.name else "mean"]
    return None if value is None else value * 100
