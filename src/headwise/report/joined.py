"""Clients that never trained, beside those that did: a row per method."""

from __future__ import annotations

from statistics import fmean, stdev

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
        [line.name, _said(line.values("last", line.moment)) if line.measured else "", *_cells(line, columns)]
        for line in lines
    ]
    return head, rows


def _values(line: Line) -> dict[tuple[str, str], list[float]]:
    """One accuracy per seed, by what it is of and by epochs."""
    found: dict[tuple[str, str], list[float]] = {}
    for summary in line.summaries:
        for model in HEAD:
            for epochs, value in summary.get("new_clients", {}).get(model, {}).items():
                found.setdefault((model, "" if model == "standalone" else epochs), []).append(value)
    return found


def _cells(line: Line, columns: list[tuple[str, str]]) -> list[str]:
    found = _values(line)
    return [_said(found.get(key, [])) for key in columns]


def _said(values: list[float]) -> str:
    if not values:
        return ""
    spread = f" ± {100 * stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * fmean(values):.2f}{spread}"


def _epochs(count: str) -> str:
    return f"{count} epoch{'s' * (count != '1')}"
