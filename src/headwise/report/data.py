"""The numbers behind the page's charts: mean and spread over seeds, rounded, with no more points than you can see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from statistics import fmean, stdev
from typing import Any, Literal

from ..log.metrics import WORST_DECILE, Metric, percent
from ..log.schema import MOMENTS, Round, figures
from ..settings import catalog
from .clients import client_scores
from .inside import diagnostics, thinned
from .results import Line, Setting, reading

POINTS = 400
"""per curve: more can't be told apart on a screen"""
COLOURS = 8
"""how many the page uses before it adds dashes"""
INSIDE = 2_000_000
"""characters of the page for the methods' diagnostics, over all lines"""
MEGABYTE = 2**20

Rows = Sequence[Round]


def page_data(settings: Iterable[Setting]) -> list[dict[str, Any]]:
    """What the page's script draws for each setting."""
    found = list(settings)
    return [setting_data(setting, INSIDE // max(1, sum(len(s.lines) for s in found))) for setting in found]


def setting_data(setting: Setting, room: int = 0) -> dict[str, Any]:
    """One setting: its lines and its partition; each line's diagnostics take at most about `room` characters."""
    return {
        "title": setting.title,
        "metric": metric_data(setting.metric),
        "floor": _round(setting.floor),
        "alone": setting.alone.name if setting.alone else None,
        "order": [line.name for line in setting.measured],
        "classes": setting.classes,
        "names": setting.run.names or None,
        "partition": parts_with_samples(setting.partition),
        "floors": [_round(f) for f in setting.run.floors],
        "lines": [
            {**_line(line, room), "slot": slot} for line, slot in zip(setting.lines, _slots(setting), strict=True)
        ],
    }


def parts_with_samples(counts: Mapping[str, Any]) -> dict[str, Any]:
    """Each client's counts by class for training, test and, if there are any, validation."""
    return {p: counts[p] for p in ("train", "val", "test") if p != "val" or any(map(sum, counts.get(p, ())))}


def metric_data(metric: Metric) -> dict[str, Any]:
    return {"label": metric.label, "better": metric.better, "percent": metric.form is percent}


def _slots(setting: Setting) -> list[int]:
    """Each line's colour number: its method's own if free, so that a method looks the same on every page."""
    known, taken, found = catalog.names("method"), set[int](), list[int]()
    for line in setting.lines:
        method = line.runs[0].method
        first = known.index(method) if method in known else 0
        # other colours, then other dashes
        choices = ((first + k) % COLOURS + COLOURS * (k // COLOURS) for k in count())
        slot = -1 if line is setting.alone else next(s for s in choices if s not in taken)
        taken.add(slot)
        found.append(slot)
    return found


def _line(line: Line, room: int) -> dict[str, Any]:
    runs, clients = line.rows, range(line.runs[0].manifest["experiment"]["clients"])
    with reading(line.runs[0]):
        return {
            "name": line.name,
            "method": line.runs[0].method,
            "seeds": [run.manifest["experiment"]["seed"] for run in line.runs],
            "moment": line.moment if line.measured else None,
            "rounds": max((len(rows) for rows in runs), default=0),
            "curves": {m: curve for m in MOMENTS if (curve := _curve(line, m))},
            "clients": {m: [_round(a.get(c)) for c in clients] for m, a in client_scores(line).items()},
            "worst": _round(_worst(line)),
            "traffic": _traffic(runs),
            "cost": _cost(runs),
            "inside": diagnostics(line.runs[0], room),
        }


def _worst(line: Line) -> float | None:
    """The mean of the worst tenth of its clients; None if not measured."""
    known = line.measured and line.values(WORST_DECILE.name, line.moment)
    return line.mean(WORST_DECILE.name, line.moment) if known else None


def _curve(line: Line, moment: str) -> dict[str, list[Any]] | None:
    """Mean and spread over the seeds, in the rounds that all of them have; round 0 is before any training."""
    if not line.values("last", moment):
        return None
    main, runs = line.metric, [[*filter(None, [run.start]), *run.rounds] for run in line.runs]
    seeds = [{row["round"]: found for row in rows if (found := figures(row, moment, main))} for rows in runs]
    rounds = thinned([t for t in seeds[0] if all(t in seed for seed in seeds)], POINTS)
    if not rounds:
        return None
    sent = [_sent(rows) for rows in runs]
    values = [[seed[t][main.name] for seed in seeds] for t in rounds]
    return {
        "round": rounds,
        "mb": [round(fmean(s[t] for s in sent) / MEGABYTE, 4) for t in rounds],
        "mean": [_round(fmean(v)) for v in values],
        "std": [_round(stdev(v) if len(v) > 1 else 0.0) for v in values],
    }


def _sent(rows: Rows) -> dict[int, int]:
    """Bytes sent up to and including each round, without those that only the evaluation needed."""
    total, found = 0, {}
    for row in rows:
        total += row["bytes_up"] + row["bytes_down"] + row.get("bytes_idle", 0) + row.get("bytes_census", 0)
        found[row["round"]] = total
    return found


def _traffic(runs: Sequence[Rows]) -> dict[str, Any]:
    """Bytes per round over all clients, by direction and message field; and how many clients take part."""
    rows = [row for rows in runs for row in rows]
    return {
        "up": _fields(rows, "up"),
        "down": _fields(rows, "down"),
        "idle": _mean(row.get("bytes_idle", 0) for row in rows),
        "clients": _mean(len(row.get("clients", ())) for row in rows),
    }


def _fields(rows: Rows, way: Literal["up", "down"]) -> dict[str, float]:
    """By field if the rows say so, else in total."""
    told = [found[way] for row in rows if (found := row.get("fields"))]
    if not rows or len(told) < len(rows):
        return {"message": _mean(row["bytes_up" if way == "up" else "bytes_down"] for row in rows)}
    return {name: _mean(found.get(name, 0) for found in told) for name in sorted({k for found in told for k in found})}


def _cost(runs: Sequence[Rows]) -> dict[str, Any]:
    """Seconds per round by phase, those of the workers apart; samples per second; memory if measured."""
    rows = [row for rows in runs for row in rows]
    spent = sum(row["seconds"]["round"] for row in rows)
    memory = [found for row in rows if (found := row.get("memory")) is not None]
    return {
        "seconds": _by_phase([row["seconds"] for row in rows]),
        "workers": _by_phase([row["seconds"].get("workers", {}) for row in rows]),
        "samples_per_second": round(sum(row.get("samples", 0) for row in rows) / spent, 1) if spent else None,
        "memory": max(memory, default=None),
    }


def _by_phase(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The mean of each phase in the rows; the whole round comes last."""
    phases = dict.fromkeys(k for row in rows for k, v in row.items() if isinstance(v, (int, float)))
    return {k: _mean(row.get(k, 0.0) for row in rows) for k in sorted(phases, key=lambda k: k == "round")}


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return round(fmean(found), 5) if found else 0.0


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
