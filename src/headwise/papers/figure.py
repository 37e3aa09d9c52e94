"""A paper's curve figures: accuracy over the rounds, one figure per column, drawn from finished cells."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from ..disk.files import read_bytes, read_json
from ..errors import RunError
from ..log.metrics import ACCURACY
from ..report.figures import DASHES, PALETTE, draw
from ..runs.query import Run
from .cells import STANDALONE, Ask, cell_of, recipe_of
from .reproduce import curve, floor_in, is_finished
from .tables import Column, Moment

Points = list[tuple[int, float]]
"""rounds and percentages"""


def write_curves(ask: Ask, cells: Path, folder: Path) -> list[Path]:
    """Draw each column in which a cell is finished, as SVG and PDF; return the paths.

    `cells` holds runs, or the CSV and JSON files of collected cells.
    """
    written: list[Path] = []
    for column in ask.columns:
        lines = collect_curves(ask, column, cells) if column.measure == "accuracy" else {}
        if lines:
            floor = _floor(ask, column, cells)
            name = re.sub(r"[^\w.=]+", "-", column.name).strip("-")
            written += draw(folder, name, _draw_curves, ask, column, lines, floor)
    if not written and all(column.measure != "accuracy" for column in ask.columns):
        raise RunError(f"{ask.name} has no curves: no accuracy is measured in these columns.")
    if not written:
        raise RunError(
            f"{cells} holds no finished cell of these columns of {ask.name} with exactly these rules and settings: run "
            f"them first, without --figure, or give the --rules and --set with which they were run."
        )
    return written


def missing_methods(ask: Ask, column: Column, cells: Path) -> list[str]:
    """The methods that have no curve in the column's figure."""
    return [m for m in ask.methods if m not in collect_curves(ask, column, cells)]


def collect_curves(ask: Ask, column: Column, cells: Path) -> dict[str, Points]:
    """Each method's percentage over the rounds, the mean of its seeds; without methods that are not finished."""
    lines: dict[str, Points] = {}
    for method in dict.fromkeys((STANDALONE.name, *ask.methods)):
        recipe = recipe_of(ask, method)
        folders = [cells / cell_of(ask, column, recipe, seed).folder for seed in range(ask.seeds)]
        curves = [_read_curve(folder, ask.moment(recipe, column), ask.metric) for folder in folders]
        if all(curves):
            rounds = [dict(points) for points in curves]
            lines[method] = [
                (t, 100 * sum(values[t] for values in rounds) / len(rounds))
                for t in rounds[0]
                if t and all(t in values for values in rounds)
            ]
    return lines


def _read_curve(folder: Path, moment: Moment, metric: str) -> Points:
    """From a run, or from the files of a collected cell; empty if there is neither."""
    if is_finished(folder):
        return curve(Run(folder), moment, metric)
    table, summary = (folder.with_name(f"{folder.name}.{ending}") for ending in ("csv", "json"))
    if not table.exists() and not summary.exists():
        return []
    try:
        rows = csv.DictReader(read_bytes(table, b"").decode().splitlines())
        points = [(int(row["round"]), float(row[metric])) for row in rows if row["moment"] == moment]
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        raise RunError(f"{table} is damaged: it is not a table of rounds, moments and accuracies.") from error
    try:
        listed = [t for t, _ in read_json(summary)["curves"].get(moment, [])]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{summary} is damaged: it has no curves.") from error
    if [t for t, _ in points] != listed:
        raise RunError(f"{table} is not complete: it lacks evaluations ({moment}) that {summary.name} lists.")
    return points


def _floor(ask: Ask, column: Column, cells: Path) -> float | None:
    """What guessing each client's most frequent class scores, in percent: of any finished cell of the column."""
    for method, seed in product((STANDALONE.name, *ask.methods), range(ask.seeds)):
        folder = cells / cell_of(ask, column, recipe_of(ask, method), seed).folder
        collected = folder.with_name(f"{folder.name}.json")
        if is_finished(folder):
            return floor_in(Run(folder).manifest["partition"]["floor"], ask)
        if collected.exists():
            try:
                return floor_in(read_json(collected)["floor"], ask)
            except (KeyError, TypeError, ValueError) as error:
                raise RunError(f"{collected} is damaged: it has no floor.") from error
    return None


def _draw_curves(axes: Any, ask: Ask, column: Column, lines: dict[str, Points], floor: float | None) -> None:
    own = ask.paper.name
    known = [m for m in dict.fromkeys((own, *(r.name for r in ask.paper.methods), *lines)) if m != STANDALONE.name]
    for method, points in lines.items():
        k = known.index(method) if method in known else 0  # of the paper: the same look in each of its figures
        colour = PALETTE[k % len(PALETTE)] if method in known else "#6e7781"
        dashes = DASHES[k // len(PALETTE) % len(DASHES)]
        width = 2.2 if method == own else 1.2
        axes.plot(*_columns(points), label=method, color=colour, linestyle=dashes, linewidth=width)
    if floor is not None:
        axes.axhline(floor, color="#8c959f", linewidth=0.8, linestyle=":", label="floor: guessing")
    scale = [f"scale {ask.scale.name}"] if ask.scaled else []
    how = ", ".join([*scale, *(["rules of the code"] if ask.rules == "code" else []), *ask.set_by_hand])
    title = f"{ask.paper.name}, {ask.table.name}: {column.name}"
    axes.set_title(f"{title}\n{how}" if how else title, fontsize=9)
    axes.set_xlabel("round")
    axes.locator_params(axis="x", integer=True)
    axes.set_ylabel("accuracy in %" if ask.metric == ACCURACY.name else "mean accuracy of the clients in %")
    axes.legend(fontsize=7, frameon=False, ncols=1 + len(lines) // 10)


def _columns(points: Points) -> Sequence[Sequence[float]]:
    return [t for t, _ in points], [value for _, value in points]
