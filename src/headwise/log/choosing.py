"""Which metric judges a run, which are measured, and which are shown beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..errors import ConfigError, nearest
from .metrics import ACCURACY, CLIENT_MEAN, CLIENT_STD, DEFAULTS, WORST_DECILE, Metric, highest_tenth, metrics


def judging(name: str | None, task: str | None) -> Metric:
    """The metric by which a run is judged: the one that its experiment names, or the usual one of its task."""
    known = {m.name: m for m in metrics() if m.source == m.name}
    name = name or DEFAULTS[task or "classification"]
    if name not in known:
        raise ConfigError(f"evaluate.metric is {name!r}: {nearest(name, known)}")
    return known[name]


def is_majority(metric: Metric, task: str | None) -> bool:
    """Whether a run's floor is the share of each client's most frequent class."""
    return metric is ACCURACY and task in (None, "classification")


def wanted(task: str, names: Sequence[str], main: str | None) -> list[Metric]:
    """The metrics to measure: those named, or the usual ones of this task; and the one that judges the run."""
    able = {m.name: m for m in metrics() if task in m.tasks and m.source == m.name}
    asked = [(f"evaluate.metrics[{k}]", name) for k, name in enumerate(names)]
    for at, name in [*asked, *([("evaluate.metric", main)] if main else [])]:
        if name not in able:
            raise ConfigError(f"{at} is {name!r}, but the task is {task}: {nearest(name, able)}")
    chosen = {*(names or (m.name for m in able.values() if m.usual)), judging(main, task).name}
    return [m for m in able.values() if m.name in chosen]


def combined(main: Metric) -> list[Metric]:
    """All metrics; those that say how clients differ do so by the metric that judges the run."""
    of: dict[str, Any] = {"of": main.name, "form": main.form}
    worst = {"over": highest_tenth} if main.better == "down" else {}
    told = [replace(m, better=main.better, **of) for m in (CLIENT_MEAN, WORST_DECILE)]
    own = {m.name: m for m in (told[0], replace(CLIENT_STD, **of), replace(told[1], **worst))}
    return [own.get(m.name, m) for m in metrics()]


def extras(main: Metric, asked: Sequence[str] = ()) -> list[Metric]:
    """The metrics that tables show beside the one that judges the run, among them all that were asked for by name."""
    return [m for m in combined(main) if (m.column or m.name in asked) and m.name != main.name]
