"""The numbers behind the page's charts and tables, rounded and thinned out to what a screen can show."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from statistics import fmean, stdev
from typing import Any, Literal

from ..disk.jsontext import leaves, to_json, to_toml
from ..log.metrics import Metric, percent
from ..log.schema import MOMENTS, Round, figures
from ..runs.query import Run
from ..settings.experiment import Experiment
from ..settings.fields import difference
from ..settings.foreign import CHOICES
from ..settings.names import list_names
from .results import Line, Setting, explain_damage
from .tables import Table

POINTS = 400
"""per curve: more can't be told apart on a screen"""
COLOURS = 8
"""colours that the page uses before it adds dashes"""
INSIDE = 2_000_000
"""characters of the page for the methods' diagnostics, over all lines"""
MEGABYTE = 2**20

Rows = Sequence[Round]


def page_data(settings: Iterable[Setting]) -> list[dict[str, Any]]:
    """What the page's script draws for each setting."""
    all_settings = list(settings)
    return [
        setting_data(setting, INSIDE // max(1, sum(len(s.lines) for s in all_settings))) for setting in all_settings
    ]


def setting_data(setting: Setting, room: int = 0) -> dict[str, Any]:
    """One setting: its lines and its partition; each line's diagnostics take at most about `room` characters."""
    return {
        "title": setting.title,
        "metric": metric_data(setting.metric),
        "floor": _round(setting.floor),
        "local": setting.local_training.name if setting.local_training else None,
        "order": [line.name for line in setting.ranking],
        "classes": setting.classes,
        "names": setting.run.names or None,
        "partition": parts_with_samples(setting.partition),
        "floors": [_round(f) for f in setting.run.floors],
        "lines": [
            {**_line(line, setting, room), "slot": slot}
            for line, slot in zip(setting.lines, _slots(setting), strict=True)
        ],
    }


def parts_with_samples(counts: Mapping[str, Any]) -> dict[str, Any]:
    """Each client's counts by class for training, test and, if there are any, validation."""
    return {p: counts[p] for p in ("train", "val", "test") if p in counts and (p != "val" or any(map(sum, counts[p])))}


def metric_data(metric: Metric) -> dict[str, Any]:
    return {"label": metric.label, "better": metric.better, "percent": metric.form is percent}


def _slots(setting: Setting) -> list[int]:
    """Each line's colour number: its method's own if free, so that a method looks the same on every page."""
    known = list_names("method")
    taken = set[int]()
    slots = list[int]()
    for line in setting.lines:
        method = line.runs[0].method
        first = known.index(method) if method in known else 0
        # other colours, then other dashes
        choices = ((first + k) % COLOURS + COLOURS * (k // COLOURS) for k in count())
        slot = -1 if line is setting.local_training else next(s for s in choices if s not in taken)
        taken.add(slot)
        slots.append(slot)
    return slots


def _line(line: Line, setting: Setting, room: int) -> dict[str, Any]:
    runs = line.rows
    clients = range(line.runs[0].manifest["experiment"]["clients"])
    with explain_damage(line.runs[0]):
        scores = client_scores(line, setting)
        return {
            "name": line.name,
            "method": line.runs[0].method,
            "seeds": [run.manifest["experiment"]["seed"] for run in line.runs],
            "moment": line.moment if line.measured_moments else None,
            "rounds": max((len(rows) for rows in runs), default=0),
            "curves": {m: curve for m in MOMENTS if (curve := _curve(line, m))},
            "clients": {m: [_round(by_client.get(c)) for c in clients] for m, by_client in scores.items()},
            "worst": _round(_worst_tenth(scores.get(line.moment, {}), line.metric) if line.measured_moments else None),
            "traffic": _traffic(runs),
            "cost": _cost(runs),
            "inside": diagnostics(line.runs[0], room),
        }


def _worst_tenth(scores: Scores, metric: Metric) -> float | None:
    """The mean of the worst tenth of the clients that a chart shows, at least one; None without clients."""
    ordered = sorted(scores.values(), key=lambda score: metric.gain(score, 0.0))
    return fmean(ordered[: max(len(ordered) // 10, 1)]) if ordered else None


def _curve(line: Line, moment: str) -> dict[str, list[Any]] | None:
    """Mean and spread over the seeds, in the rounds that all of them have; round 0 is before any training."""
    if not line.values("last", moment):
        return None
    main = line.metric
    runs = [[*filter(None, [run.start]), *run.rounds] for run in line.runs]
    seeds = [{row["round"]: figures_at for row in rows if (figures_at := figures(row, moment, main))} for rows in runs]
    rounds = thin([t for t in seeds[0] if all(t in seed for seed in seeds)], POINTS)
    if not rounds:
        return None
    sent = [_count_bytes(rows) for rows in runs]
    values = [[seed[t][main.name] for seed in seeds] for t in rounds]
    return {
        "round": rounds,
        "mb": [round(fmean(s[t] for s in sent) / MEGABYTE, 4) for t in rounds],
        "mean": [_round(fmean(v)) for v in values],
        "std": [_round(stdev(v) if len(v) > 1 else 0.0) for v in values],
    }


def _count_bytes(rows: Rows) -> dict[int, int]:
    """Bytes sent up to and including each round, without those that only the evaluation needed."""
    total = 0
    bytes_by_round = {}
    for row in rows:
        total += row["bytes_up"] + row["bytes_down"] + row.get("bytes_idle", 0) + row.get("bytes_census", 0)
        bytes_by_round[row["round"]] = total
    return bytes_by_round


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
    """By field if the rows have fields, else in total."""
    sizes = [fields[way] for row in rows if (fields := row.get("fields"))]
    if not rows or len(sizes) < len(rows):
        return {"message": _mean(row["bytes_up" if way == "up" else "bytes_down"] for row in rows)}
    return {
        name: _mean(fields.get(name, 0) for fields in sizes) for name in sorted({k for fields in sizes for k in fields})
    }


def _cost(runs: Sequence[Rows]) -> dict[str, Any]:
    """Seconds per round by phase, separately for the workers; samples per second; memory if measured."""
    rows = [row for rows in runs for row in rows]
    spent = sum(row["seconds"]["round"] for row in rows)
    memory = [peak for row in rows if (peak := row.get("memory")) is not None]
    return {
        "seconds": _average_phases([row["seconds"] for row in rows]),
        "workers": _average_phases([row["seconds"]["workers"] for row in rows]),
        "samples_per_second": round(sum(row.get("samples", 0) for row in rows) / spent, 1) if spent else None,
        "memory": max(memory, default=None),
    }


def _average_phases(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The mean of each phase in the rows; the whole round comes last."""
    phases = dict.fromkeys(k for row in rows for k, v in row.items() if isinstance(v, (int, float)))
    return {k: _mean(row.get(k, 0.0) for row in rows) for k in sorted(phases, key=lambda k: k == "round")}


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return round(fmean(numbers), 5) if numbers else 0.0


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def command_of(run: Run) -> str:
    """The command that repeats the run with the same bits, without settings at their defaults."""
    usual = Experiment().to_plain()
    now = run.manifest["experiment"]
    # choices are written in full, with all options
    chosen = [(name, now[name]) for name in CHOICES if now.get(name)]
    others = leaves(difference({k: v for k, v in now.items() if k not in CHOICES}, usual))
    return shlex.join(["headwise", "run", *(w for k, v in [*chosen, *others] for w in ("--set", f"{k}={to_toml(v)}"))])


Scores = dict[int, float]
"""by client"""


def client_scores(line: Line, setting: Setting) -> dict[str, Scores]:
    """Each client's last score on its test samples by moment, averaged over seeds; without those not measured.

    If a number stands for different clients in different draws, only the first draw is used.
    """
    by_moment: dict[str, dict[int, list[float]]] = {}
    first = min(draw for draw, _ in line.by_cell)
    for run in (run for (draw, _), run in line.by_cell.items() if setting.has_same_clients or draw == first):
        with explain_damage(run):
            for moment, by_client in run.last_scores().items():
                if moment == "post":  # of the last round's clients; *stale* has everybody's
                    continue
                for c, value in by_client.items():
                    by_moment.setdefault(moment, {}).setdefault(c, []).append(value)
    return {m: {c: fmean(v) for c, v in sorted(by_client.items())} for m, by_client in by_moment.items()}


FEDERATION_COLUMNS = (
    "Site",
    "Clients",
    "Rounds trained in",
    "Messages",
    "Failures",
    "KB down",
    "KB up",
    "Seconds per message",
)


def tabulate_sites(runs: Iterable[Run]) -> list[tuple[str, ...]]:
    """A row for each site of these runs; empty for simulations."""
    by_site: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        with explain_damage(run):
            for line in run.sites:
                by_site.setdefault(str(line["site"]), []).append(line)
    return [_row(site, lines) for site, lines in sorted(by_site.items())]


def _row(site: str, lines: list[dict[str, Any]]) -> tuple[str, ...]:
    done = [line for line in lines if "failure" not in line]
    trained = {line["round"] for line in done if line["task"] == "fit"}
    kilobytes = (f"{sum(line[way] for line in lines) / 1024:,.1f}" for way in ("bytes_down", "bytes_up"))
    seconds = f"{fmean(line['seconds'] for line in done):.1f}" if done else "–"
    clients = ", ".join(map(str, sorted({c for line in lines for c in line["clients"]})))
    return site, clients, str(len(trained)), str(len(lines)), str(len(lines) - len(done)), *kilobytes, seconds


ROOM = 300_000
"""at most this many characters for one quantity on the page"""
FEWEST = 3
MOST = 60
"""rounds of a quantity on the page, regardless of size"""


def diagnostics(run: Run, room: int = ROOM) -> dict[str, Any]:
    """Each quantity's axes, and its values by round; empty if the method shows none."""
    rows = run.diagnostics
    quantities: dict[str, Any] = {}
    for row in thin(rows, _rounds(rows[-1], min(room, ROOM))) if rows else ():
        for name, quantity in row["quantities"].items():
            entry = quantities.setdefault(name, {"axes": quantity["axes"], "rounds": []})
            entry["rounds"].append({"round": row["round"], "ids": quantity["ids"], "values": quantity["values"]})
    return quantities


def _rounds(row: dict[str, Any], room: int) -> int:
    """How many rounds fit, if each is as large as this one."""
    largest = max((len(to_json(q)) for q in row["quantities"].values()), default=1)
    return max(FEWEST, min(MOST, room // largest))


def thin(values: list[Any], most: int) -> list[Any]:
    """At most `most` of the values, evenly spaced, including the first and the last."""
    if len(values) <= most:
        return values
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


NEWCOMER_COLUMNS = {"joined": "joined, {}", "alone": "local training, {}", "standalone": "local training, as long"}


def tabulate_newcomers(setting: Setting) -> Table | None:
    """Mean and spread over the seeds; None if no run held clients out."""
    lines = [line for line in setting.lines if any(s.get("new_clients") for s in line.summaries)]
    if not lines:
        return None
    columns = list(dict.fromkeys(key for line in lines for key in _values(line)))
    head = ["method", "trained", *(NEWCOMER_COLUMNS[model].format(_epochs(e)) for model, e in columns)]
    rows = [
        [
            line.name,
            _cell(line.values("last", line.moment), line.metric) if line.measured_moments else "",
            *_newcomer_cells(line, columns),
        ]
        for line in lines
    ]
    return head, rows


def _values(line: Line) -> dict[tuple[str, str], list[float]]:
    """One value per seed, by kind of model and epochs."""
    by_kind: dict[tuple[str, str], list[float]] = {}
    for summary in line.summaries:
        for model in NEWCOMER_COLUMNS:
            for epochs, value in summary.get("new_clients", {}).get(model, {}).items():
                by_kind.setdefault((model, "" if model == "standalone" else epochs), []).append(value)
    return by_kind


def _newcomer_cells(line: Line, columns: list[tuple[str, str]]) -> list[str]:
    values = _values(line)
    return [_cell(values.get(key, []), line.metric) for key in columns]


def _cell(values: list[float], metric: Metric) -> str:
    if not values:
        return ""
    spread = f" ± {in_table(stdev(values), metric)}" if len(values) > 1 else ""
    return f"{in_table(fmean(values), metric)}{spread}"


def in_table(value: float, metric: Metric, sign: str = "") -> str:
    """Shares in per cent, without repeating the sign in every cell; others in their own unit."""
    return f"{100 * value:{sign}.2f}" if metric.form is percent else f"{value:{sign}.4g}"


def _epochs(count: str) -> str:
    return f"{count} epoch{'s' * (count != '1')}"
