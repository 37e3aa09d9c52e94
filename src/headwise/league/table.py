"""The league's CSV, and the results of one federation as paired cells with intervals."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from ..disk.files import from_json, read_bytes
from ..disk.jsontext import csv_cell, to_json
from ..errors import RunError
from ..log.metrics import Metric, metrics
from ..stats import EQUAL, Cells, Interval
from .cells import COLUMNS, Result

LARGEST = 1 << 28
"""bytes of a CSV"""
TEXTS = (
    *("federation", "kind", "method", "family", "setting", "metric", "better", "error", "headwise", "machine"),
    "federation_hash",
)
"""columns that are texts; all others are JSON"""


def to_csv(results: Iterable[Result]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for result in sorted(results, key=_place):
        values = result.plain()
        writer.writerow([_cell(name, values[name]) for name in COLUMNS])
    return text.getvalue()


def _place(result: Result) -> tuple[str, str, str, int]:
    return result.federation, result.method, result.setting, result.draw


def _cell(name: str, value: Any) -> str:
    if name in TEXTS:
        return str(csv_cell(value))
    return "" if value is None else to_json(_round_value(value)).replace(", ", ",")


def _round_value(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list):
        return [None if v is None else float(f"{v:.4f}") for v in value]
    return {k: _round_value(v) for k, v in value.items()} if isinstance(value, dict) else value


def read_csv(path: Path) -> list[Result]:
    """The results in a CSV that `to_csv` wrote; raises `RunError` if it is none."""
    data = read_bytes(path)
    if len(data) > LARGEST:
        raise RunError(f"{path} is larger than {LARGEST:,} bytes: it is not the table of a league.")
    try:
        head, *rows = csv.reader(io.StringIO(data.decode(), newline=""))
        if tuple(head) != COLUMNS or any(len(row) != len(head) for row in rows):
            raise ValueError
    except (ValueError, csv.Error):
        raise RunError(f"{path} is not the table of a league: its columns must be {', '.join(COLUMNS)}.") from None
    return [_result(dict(zip(head, row, strict=True)), path, k) for k, row in enumerate(rows, start=2)]


def _result(texts: dict[str, str], path: Path, line: int) -> Result:
    where = f"line {line}"
    values: dict[str, Any] = {
        k: t if k in TEXTS else from_json(t.encode(), path, where) if t else None for k, t in texts.items()
    }
    shapes = {"scores": list, "new_clients": dict, "settings": dict, "draw": int, "clients": int, "same_clients": bool}
    if wrong := [k for k, shape in shapes.items() if type(values[k]) is not shape]:
        raise RunError(f"{path} is damaged: line {line} has a wrong {wrong[0]}.")
    numbers = [values["mean_client"], *values["scores"], *values["new_clients"].values()]
    if any(not (n is None or type(n) in (int, float)) for n in numbers):
        raise RunError(f"{path} is damaged: line {line} has a score that is not a number.")
    return Result(**values)


def entry_of(result: Result) -> str:
    """A method, with its settings if they are not the default ones."""
    return result.method if result.setting == "default" else f"{result.method}, {result.setting}"


@dataclass(frozen=True)
class Group:
    name: str
    results: tuple[Result, ...]

    @cached_property
    def by_draw(self) -> dict[str, dict[int, Result]]:
        """By entry and draw, those that have a score."""
        entries: dict[str, dict[int, Result]] = {}
        for result in self.results:
            if result.mean_client is not None:
                entries.setdefault(entry_of(result), {})[result.draw] = result
        return entries

    @cached_property
    def draws(self) -> list[int]:
        """Those that are compared: so that methods that have all of them, times draws, are as many as possible."""
        known = [{*by_draw} for by_draw in self.by_draw.values()]
        often = sorted({*chain(*known)}, key=lambda d: (-sum(d in draws for draws in known), d))
        blocks = [often[: k + 1] for k in range(len(often))]
        return sorted(max(blocks, key=lambda block: len(block) * sum({*block} <= d for d in known), default=[]))

    @cached_property
    def scored(self) -> dict[str, dict[int, Result]]:
        """The entries that have a score on all of these draws."""
        return {name: by_draw for name, by_draw in self.by_draw.items() if {*self.draws} <= {*by_draw}}

    @cached_property
    def unfinished(self) -> list[str]:
        """The entries that were not run on all of these draws, and are left out."""
        return [name for name in self.by_draw if name not in self.scored]

    @cached_property
    def failed(self) -> dict[str, str]:
        """Entries without a score, and why."""
        return {entry_of(r): r.error for r in self.results if r.error and entry_of(r) not in self.by_draw}

    @property
    def first(self) -> Result:
        return next(iter(next(iter(self.scored.values())).values()))

    @cached_property
    def metric(self) -> Metric:
        return next(m for m in metrics() if m.name == self.first.metric)

    @cached_property
    def cells(self) -> Cells:
        """Every client counts the same."""
        scores = {
            name: np.array([[by_draw[d].scores] for d in self.draws], dtype=float)  # None becomes NaN
            for name, by_draw in self.scored.items()
        }
        weights = np.ones((len(self.draws), self.first.clients))
        return Cells(scores, weights, self.first.same_clients, more_is_better=self.first.better == "up")

    @cached_property
    def near(self) -> list[str]:
        """Those that can't be told from the best, which is the first."""
        return self.cells.not_worse_than_best(EQUAL)

    def lead(self, name: str, other: str) -> Interval | None:
        """How far it is ahead of another; None if that was not run here."""
        return self.cells.difference(name, other) if other in self.scored and name in self.scored else None

    def regret(self, name: str) -> float:
        """How far it is behind the best."""
        return self.cells.difference(self.cells.ranking[0], name).value

    def mean(self, name: str, column: str) -> float | None:
        values = [getattr(self.scored[name][d], column) for d in self.draws]
        return None if None in values else fmean(values)

    def new_client_mean(self, name: str, epochs: int) -> float | None:
        """The mean new client after so many epochs; None if there are none."""
        values = [self.scored[name][d].new_clients.get(f"{epochs} epochs") for d in self.draws]
        known = [value for value in values if value is not None]
        return fmean(known) if known else None


def split_by_federation(results: Sequence[Result]) -> list[Group]:
    names = [*dict.fromkeys(result.federation for result in results)]
    return [Group(name, tuple(r for r in results if r.federation == name)) for name in names]
