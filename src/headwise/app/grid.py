"""Grids of settings for a comparison: some divide the data in other ways, others are chosen on validation samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any

from ..disk.files import digest
from ..disk.paths import folder_name
from ..errors import ConfigError
from ..log.metrics import Metric
from ..report.results import FEDERATION, Line
from ..report.tables import Table
from ..settings.fields import literal
from .fit import SHORT
from .tune import validation_score

Point = tuple[tuple[str, Any], ...]
"""settings and their values"""
FIXED = {
    "seed": "--seeds repeats a comparison with other seeds",
    "data_seed": "--draws repeats a comparison on other partitions",
    "engine": "it must not change results",
    "evaluate": "scores measured in different ways can't be compared",
    "origin": "headwise run --from sets it",
}
"""settings that a grid can't vary, and why"""
MOST = 1000
"""points of a grid: all are listed before the first run starts"""


@dataclass(frozen=True)
class GridCell:
    """One method with one choice of settings on one federation, over all draws and seeds."""

    federation: Point
    point: Point
    line: Line
    """named after the method"""

    @property
    def validation(self) -> float | None:
        """Mean score on validation samples in the last round; None if a run diverged."""
        scores = [validation_score(run.rounds[-1], run.metric) for run in self.line.runs]
        known = [score for score in scores if score is not None]
        return fmean(known) if len(known) == len(scores) else None

    def to_plain(self) -> dict[str, Any]:
        return {
            "federation": dict(self.federation),
            "method": self.line.name,
            "settings": dict(self.point),
            "validation": self.validation,
            self.line.moment: self.line.score,
            "runs": [str(run.path) for run in self.line.runs],
        }


def parse_grid(texts: Iterable[str]) -> dict[str, list[Any]]:
    """From ``train.lr=0.01,0.1``, or ``lr=0.01,0.1``."""
    grid: dict[str, list[Any]] = {}
    for text in texts:
        name, sign, values = (part.strip() for part in text.partition("="))
        if not sign or not name or not values:
            raise ConfigError(f"grid is {text!r}, but must look like train.lr=0.01,0.1.")
        if name in grid:
            raise ConfigError(f"grid names {name} twice: list all its values once.")
        grid[name] = [literal(value.strip()) for value in values.split(",")]
    return grid


def split_grid(grid: Mapping[str, Sequence[Any]]) -> tuple[list[Point], list[Point]]:
    """The federations, and the settings to choose from: all combinations of the values of each kind."""
    full = {SHORT.get(name, name): list(values) for name, values in grid.items()}
    for name, values in full.items():
        why = FIXED.get(name.partition(".")[0], "name the methods instead" if name == "method" else "")
        if why:
            raise ConfigError(f"grid names {name}, which it can't vary: {why}.")
        if len(values) < 2 or len(set(map(repr, values))) < len(values):
            raise ConfigError(f"grid has {name} = {values}, but must list at least two different values.")
    federations = {name: values for name, values in full.items() if name.partition(".")[0] in FEDERATION}
    choices = {name: values for name, values in full.items() if name not in federations}
    points = [_list_points(federations), _list_points(choices)]
    if len(points[0]) * len(points[1]) > MOST:
        raise ConfigError(f"grid has {len(points[0]) * len(points[1]):,} points, but at most {MOST:,} are allowed.")
    return points[0], points[1]


def _list_points(values: Mapping[str, Sequence[Any]]) -> list[Point]:
    return [tuple(zip(values, combination, strict=True)) for combination in product(*values.values())]


def format_point(point: Point) -> str:
    """For names and tables, by the last part of each name: ``lr=0.01, epochs=5``."""
    return ", ".join(f"{name.rpartition('.')[2]}={value}" for name, value in point)


def folder_of(point: Point) -> str:
    """The name of the folder of a point's runs; empty for the only point."""
    text = ", ".join(f"{name}={value}" for name, value in point)
    return f"{folder_name(text)[:80]}-{digest(text.encode())[:6]}" if point else ""


def choose_best(cells: Sequence[GridCell], metric: Metric) -> GridCell:
    """The cell with the best score on validation samples; test samples decide nothing."""
    if len(cells) == 1:
        return cells[0]
    known = [(cell, score) for cell in cells if (score := cell.validation) is not None]
    if not known:
        raise ConfigError(
            f"{cells[0].line.name} has no validation score with any setting of the grid: all diverged, or "
            "evaluate.moments has neither pre nor global."
        )
    return max(known, key=lambda pair: metric.gain(pair[1], 0.0))[0]


def tabulate_points(cells: Sequence[GridCell], chosen: Sequence[GridCell]) -> Table:
    """Methods by settings, on one federation: test and validation scores, with the chosen ones marked."""
    points = [*dict.fromkeys(cell.point for cell in cells)]
    by_method: dict[str, list[str]] = {}
    for cell in cells:
        form = cell.line.metric.form
        validation = "diverged" if (score := cell.validation) is None else form(score)
        by_method.setdefault(cell.line.name, []).append(
            f"{form(cell.line.score)} ({validation}){' ✓' if cell in chosen else ''}"
        )
    return ["method", *map(format_point, points)], [[name, *scores] for name, scores in by_method.items()]


def tabulate_federations(chosen: Sequence[GridCell]) -> Table:
    """Methods by federations: test scores with the settings that were chosen."""
    federations = [*dict.fromkeys(cell.federation for cell in chosen)]
    by_method: dict[str, list[str]] = {}
    for cell in chosen:
        settings = f" ({format_point(cell.point)})" if cell.point else ""
        form = cell.line.metric.form
        spread = form(cell.line.spread("last", cell.line.moment)).removesuffix(" %")
        score = f"{form(cell.line.score)} ± {spread}" if len(cell.line.runs) > 1 else form(cell.line.score)
        by_method.setdefault(cell.line.name, []).append(f"{score}{settings}")
    return ["method", *map(format_point, federations)], [[name, *scores] for name, scores in by_method.items()]


def describe_grid(cells: Sequence[GridCell], chosen: Sequence[GridCell], share: float | None) -> list[str]:
    """How settings were chosen, and which are at the edge of what was tried."""
    if len({cell.point for cell in cells}) == 1:
        return []
    sentences = ["Each method's settings were chosen on validation samples; test samples decided nothing."]
    if share is not None:
        sentences.append(f"Clients without validation samples set {share:.0%} of their training samples aside.")
    for name in dict(cells[0].point):
        values = [dict(c.point)[name] for c in cells]
        if not all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
            continue
        for edge in (min(values), max(values)):
            methods = [c.line.name for c in chosen if dict(c.point)[name] == edge]
            if methods:
                listed = ", ".join(dict.fromkeys(methods))
                best = f"{name}={edge}, the best for {listed}, is at the edge of the grid"
                sentences.append(f"{best}: a wider grid may find better values.")
    return sentences
