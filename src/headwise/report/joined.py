"""Clients that never trained, beside those that did: a row per method."""

from __future__ import annotations

from statistics import fmean, stdev

from ..log.metrics import Metric, percent
from .results import Line, Setting
from .tables import Table

HEAD = {"joined": "joined, {}", "alone": "alone, {}", "standalone": "alone as long"}


def joined_table(setting: Setting) -> Table | None:
    """Mean and spread over the seeds; None if no run held clients out."""
    lines = [line for line in setting.lines if any(s.get("new_clients") for s in line.summaries)]
    if not lines:
        return None
    columns = list(dict.fromkeys(key for line in lines for key in _values(line)))
    head = ["method", "trained", *(HEAD[model].format(_epochs(e)) for model, e in columns)]
    rows = [
        [
            line.name,
            _said(line.values("last", line.moment), line.metric) if line.measured else "",
            *_cells(line, columns),
        ]
        for line in lines
    ]
    return head, rows


def _values(line: Line) -> dict[tuple[str, str], list[float]]:
    """One value per seed, by what it is of and by epochs."""
    found: dict[tuple[str, str], list[float]] = {}
    for summary in line.summaries:
        for model in HEAD:
            for epochs, value in summary.get("new_clients", {}).get(model, {}).items():
                found.setdefault((model, "" if model == "standalone" else epochs), []).append(value)
    return found


def _cells(line: Line, columns: list[tuple[str, str]]) -> list[str]:
    found = _values(line)
    return [_said(found.get(key, []), line.metric) for key in columns]


def _said(values: list[float], metric: Metric) -> str:
    if not values:
        return ""
    spread = f" ± {in_table(stdev(values), metric)}" if len(values) > 1 else ""
    return f"{in_table(fmean(values), metric)}{spread}"


def in_table(value: float, metric: Metric, sign: str = "") -> str:
    """Shares in per cent, without the sign that would be in every cell; others in their own unit."""
    return f"{100 * value:{sign}.2f}" if metric.form is percent else f"{value:{sign}.4g}"


def _epochs(count: str) -> str:
    return f"{count} epoch{'s' * (count != '1')}"
