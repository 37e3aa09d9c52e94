"""Several methods, several seeds, one partition: a table with mean and spread, and what it says in words."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from .config import Choice, Experiment
from .engine.events import Observer
from .errors import ConfigError, RunError
from .launch import data_folder, free_folder, make_plan, run_or_resume
from .method import record_types
from .records import Nothing
from .runs.files import write_bytes, write_json
from .runs.query import Run

Watch = Callable[[str], AbstractContextManager[Iterable[Observer]]]
"""gives the observers that show a run of this title"""


@dataclass(frozen=True)
class Line:
    """One method's results over the seeds."""

    method: str
    runs: tuple[dict[str, Any], ...]
    """the summaries of its runs"""
    keeps: bool = True
    """whether its clients keep anything: if not, a model of their own is no result of the method"""

    def values(self, what: str, moment: str) -> list[float]:
        """One figure per seed."""
        return [r["accuracy"][moment][what] for r in self.runs if moment in r["accuracy"]]

    @property
    def measured(self) -> list[str]:
        """The moments that speak for its clients' models."""
        return [m for m in ("pre", "stale", "global") if self.values("last", m)]

    def mean(self, what: str = "last", moment: str = "pre") -> float:
        """The mean over the seeds."""
        return fmean(self.values(what, moment))

    def spread(self, what: str = "last", moment: str = "pre") -> float:
        """The standard deviation over the seeds; 0 for one seed."""
        values = self.values(what, moment)
        return stdev(values) if len(values) > 1 else 0.0

    def per_round(self, what: str) -> float:
        """Bytes or seconds per round, over all its clients."""
        return fmean(r[what] / max(r["rounds"], 1) for r in self.runs)


@dataclass(frozen=True)
class Comparison:
    """The lines of the table, in the order asked for."""

    out: Path
    lines: tuple[Line, ...]
    floor: float | None
    seeds: int

    def plain(self) -> dict[str, Any]:
        """One JSON object."""
        rows = [
            {
                "method": line.method,
                **{m: _figures(line, m) for m in line.measured},
                "bytes_up_per_round": line.per_round("bytes_up"),
                "bytes_down_per_round": line.per_round("bytes_down"),
                "seconds_per_round": line.per_round("seconds"),
                "runs": list(line.runs),
            }
            for line in self.lines
        ]
        return {"out": str(self.out), "seeds": self.seeds, "floor": self.floor, "methods": rows, "words": self.words()}

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headings and cells, as texts."""
        head = [
            "method",
            "accuracy (pre)",
            "own model (stale)",
            "worst decile",
            "KB up / round",
            "KB down",
            "s / round",
        ]
        return head, [[*_texts(line)] for line in self.lines] + self._floor_row()

    def _floor_row(self) -> list[list[str]]:
        return [] if self.floor is None else [["majority floor", _percent(self.floor), *[""] * 5]]

    def markdown(self) -> str:
        """The table in Markdown."""
        head, rows = self.table()
        lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"

    def words(self) -> list[str]:
        """What was learned, in plain sentences."""
        lines = [line for line in self.lines if line.measured]
        if not lines:
            return ["Nothing was measured: no client has test samples, or evaluate.moments asks for nothing."]
        best = max(lines, key=_best)
        said = [
            f"{best.method} gives its clients the best models: {_percent(_best(best))} of their test samples are right."
        ]
        alone = next((line for line in lines if line.method == "standalone"), None)
        if alone is not None:
            said += self._against(alone, best, lines)
        below = [line.method for line in lines if self.floor is not None and _best(line) < self.floor]
        if below:
            said.append(
                f"Below the floor of {_percent(self.floor or 0)}, which is always guessing a client's most frequent "
                f"class: {', '.join(below)}."
            )
        return said

    def _against(self, alone: Line, best: Line, lines: list[Line]) -> list[str]:
        """What learning together gains or costs the clients."""
        if alone is best:
            return ["No other method helped: here, clients are best off alone."]
        gain = (_best(best) - _best(alone)) * 100
        noise = max(line.spread("last", _moment(line)) for line in (best, alone)) * 100
        sure = "more" if gain > 2 * noise else "not clearly more"
        seeds = f", {sure} than the spread over {self.seeds} seeds" if self.seeds > 1 else ""
        said = [f"That is {gain:.1f} points above training alone ({_percent(_best(alone))}){seeds}."]
        worse = [f"{line.method} ({_percent(_best(line))})" for line in lines if _best(line) < _best(alone)]
        return said + ([f"Clients would be better off alone than with {', '.join(worse)}."] if worse else [])


def compare(
    base: Experiment,
    methods: Sequence[str],
    seeds: int = 1,
    out: str | Path | None = None,
    *,
    data_dir: str | Path | None = None,
    watch: Watch = lambda title: nullcontext(()),
) -> Comparison:
    """Run every method with so many seeds on one partition; with the same `out` again, what is done is not repeated."""
    cells = _cells(base, methods, range(base.seed, base.seed + seeds))
    folder = Path(out) if out else free_folder(f"compare-{base.data.name}")
    for _, experiment, _ in cells[: len(methods)] if len(base.model) > 1 else ():
        make_plan(experiment, data_folder(data_dir))  # a method that needs one network for all is found before any run
    done: dict[str, list[Run]] = {}
    for method, experiment, name in cells:
        with watch(f"{method}, seed {experiment.seed}") as observers:
            run = run_or_resume(experiment, folder / name, data_dir=data_dir, observers=observers)
        if not run.complete:
            raise RunError(f"{run.path} ended early ({run.ended}): the same command with --out {folder} goes on.")
        done.setdefault(method, []).append(run)
    lines = tuple(Line(m, tuple(run.summary() for run in runs), _keeps(m)) for m, runs in done.items())
    found = Comparison(folder, lines, next(iter(done.values()))[0].floor, seeds)
    write_json(folder / "comparison.json", found.plain())
    write_bytes(folder / "table.md", found.markdown().encode())
    return found


def _cells(base: Experiment, methods: Sequence[str], seeds: Iterable[int]) -> list[tuple[str, Experiment, str]]:
    """Each method with each seed, and the name of its folder; a method that can't be made is found before any run."""
    labels = {re.sub(r"[^\w.=-]+", "-", m): m for m in methods}
    if len(labels) < len(methods) or not labels:
        raise ConfigError(f"methods is {', '.join(methods)!r}, but must name at least one method, each once.")
    base.method.make("method")  # it is replaced, but a mistake in it is a mistake
    cells: list[tuple[str, Experiment, str]] = []
    for seed in seeds:
        for label, method in labels.items():
            choice = Choice.parse(method, "method").resolved("method")
            cells.append((method, dataclasses.replace(base, method=choice, seed=seed), f"{label}-s{seed}"))
    return cells


def _keeps(method: str) -> bool:
    return record_types(type(Choice.parse(method, "method").make("method"))).client is not Nothing


def _figures(line: Line, moment: str) -> dict[str, float]:
    whats = ("last", "best", "last_ten", "client_mean", "worst_decile")
    return {w: line.mean(w, moment) for w in whats} | {"std": line.spread("last", moment)}


def _best(line: Line) -> float:
    """A method's accuracy for its clients."""
    return line.mean("last", _moment(line))


def _moment(line: Line) -> str:
    """What serves a method's clients better: what they download, or what they keep."""
    own = [m for m in line.measured if m == "pre" or (m == "stale" and line.keeps)] or line.measured
    return max(own, key=lambda m: line.mean("last", m))


def _texts(line: Line) -> list[str]:
    shown = [_with_spread(line, m) if line.values("last", m) else "" for m in ("pre", "stale")]
    worst = next((_percent(line.mean("worst_decile", m)) for m in ("pre", "stale") if line.values("last", m)), "")
    traffic = [f"{line.per_round(f'bytes_{way}') / 1024:,.1f}" for way in ("up", "down")]
    return [line.method, *shown, worst, *traffic, f"{line.per_round('seconds'):.2f}"]


def _with_spread(line: Line, moment: str) -> str:
    text = _percent(line.mean("last", moment))
    return f"{text} ± {line.spread('last', moment) * 100:.1f}" if len(line.runs) > 1 else text


def _percent(value: float) -> str:
    return f"{value * 100:.1f} %"
