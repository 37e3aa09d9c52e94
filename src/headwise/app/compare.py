"""Runs several methods on several draws of a partition; the result is a table with mean and spread, and a summary."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..disk.files import write_bytes, write_json
from ..disk.paths import folder_name
from ..engine.events import Observer
from ..errors import ConfigError, capitalize
from ..log.metrics import CLIENT_MEAN, extra_columns
from ..report.data import tabulate_newcomers
from ..report.page import Captioned, Extras, write_page
from ..report.results import Line, Setting, name_row
from ..report.tables import Table, TableStyle, format_captioned_latex, format_tables, tabulate_results, to_markdown
from ..report.words import describe_results
from ..runs.comparison import COMPARISON, read_comparison
from ..runs.query import Run, title_of
from ..settings.experiment import Experiment, with_settings
from . import registry
from .citing import display_name
from .code import collect_code
from .fit import SHORT, read_base
from .grid import (
    GridCell,
    Point,
    choose_best,
    describe_grid,
    folder_of,
    format_point,
    split_grid,
    tabulate_federations,
    tabulate_points,
)
from .launch import data_folder, run_to_end
from .prepare import prepare
from .tune import Watch, with_validation

Track = Callable[[Path], Iterable[Observer]]
"""returns observers that also store the run in this folder elsewhere"""
GRIDS = tuple(name for name in SHORT if name != "class_weight")
"""settings of `fit` with one value, so that a list of values is a grid"""


@dataclass(frozen=True)
class Comparison:
    """All runs, a line per method in the given order."""

    out: Path
    settings: tuple[Setting, ...]
    """one, or one for each federation of a grid, with each method's chosen settings"""
    grid: tuple[GridCell, ...] = ()
    """every point of the grid, for each method and federation"""
    chosen: tuple[GridCell, ...] = ()
    """of each method and federation, the point that is best on validation samples"""
    validation: float | None = None
    """share of the training samples that clients without validation samples set aside to choose from the grid"""

    @property
    def setting(self) -> Setting:
        """The only federation, or the first."""
        return self.settings[0]

    @property
    def report(self) -> Path:
        return self.out / "report.html"

    def to_plain(self) -> dict[str, Any]:
        about = {"out": str(self.out), "metric": self.setting.metric.name}
        if self.grid:
            cells = [{**cell.to_plain(), "chosen": cell in self.chosen} for cell in self.grid]
            return {**about, "grid": cells, "words": self.words()}
        rows = [
            {
                "method": line.name,
                **{m: _figures(line, m) for m in line.measured_moments},
                "bytes_up_per_round": line.per_round("bytes_up"),
                "bytes_down_per_round": line.per_round("bytes_down"),
                "seconds_per_round": line.per_round("seconds"),
                "runs": line.summaries,
            }
            for line in self.setting.lines
        ]
        facts = {"draws": self.setting.draws, "floor": self.setting.floor}
        return {**about, **facts, "methods": rows, "words": self.words()}

    def table(self) -> Table:
        return tabulate_results(self.setting.lines, self.setting.floor)

    def overview(self) -> Captioned | None:
        """Methods by federations; None if there is only one federation."""
        if len(self.settings) == 1:
            return None
        caption = f"{capitalize(self.setting.metric.heading)} on test samples ({self.setting.lines[0].moment})"
        if self.tabulate_tried():
            caption += ", with settings chosen on validation samples"
        return Captioned(caption, tabulate_federations(self.chosen))

    def tabulate_tried(self) -> list[Captioned]:
        """For each federation, methods by the settings that were tried; empty if there was no choice."""
        federations = [*dict.fromkeys(cell.federation for cell in self.grid)]
        if len(self.grid) == len(self.chosen):
            return []
        metric = capitalize(self.setting.metric.heading)
        caption = f"{metric} on test samples, on validation samples in brackets; ✓ is chosen"
        tables: list[Captioned] = []
        for federation in federations:
            cells = [cell for cell in self.grid if cell.federation == federation]
            named = f"{format_point(federation)}: {caption}" if federation else caption
            tables.append(Captioned(named, tabulate_points(cells, self.chosen)))
        return tables

    def words(self) -> list[str]:
        sentences = describe_grid(self.grid, self.chosen, self.validation) if self.grid else []
        for setting in self.settings:
            title = [f"{setting.title}:"] * (len(self.settings) > 1)
            sentences += [*title, *describe_results(setting)]
        return sentences


def compare(
    base: Any,
    methods: str | Sequence[str],
    draws: int = 1,
    out: str | Path | None = None,
    *,
    seeds: int = 1,
    data_dir: str | Path | None = None,
    watch: Watch = lambda title: nullcontext(()),
    track: Track = lambda folder: (),
    grid: Mapping[str, Sequence[Any]] | None = None,
    **settings: Any,
) -> Comparison:
    """Run every method on the same draws of the partition; called again with the same `out`, skip finished runs.

    Args:
        base: an `Experiment`, or data as `fit` takes it: a mapping of clients, a DataFrame, a Dataset, or the path of
            a data.toml.
        methods: names with options, such as ``"fedrep:head_epochs=5"``, or your own ``"file.py"``.
        draws: partitions, or splits where clients are natural.
        out: the folder of the comparison: a new one, or the one to continue.
        seeds: seeds of each draw.
        data_dir: the folder of public data sets.
        watch: returns observers that display the run with this title.
        track: returns observers that also store the run in this folder elsewhere.
        grid: settings with several values each. Each value of a setting that divides the data, such as ``partition``,
            gets its own table; of all others, such as ``train.lr``, each method gets the best on validation samples.
        settings: those of `fit`, if `base` is not an `Experiment`; a list, as in ``lr=[0.01, 0.1]``, is a grid.

    Returns:
        The comparison: its tables, its words, and the path of its page.

    >>> compare(frame, ["fedavg", "fedah"], client="hospital", target="ill", rounds=2).report
    PosixPath('runs/compare-own/report.html')
    >>> comparison = compare(frame, ["fedavg", "fedah"], client="hospital", target="ill", rounds=2, lr=[0.01, 0.1])
    >>> [cell.point for cell in comparison.grid if cell.line.name == "fedah"]
    [(('train.lr', 0.01),), (('train.lr', 0.1),)]
    """
    methods = [methods] if isinstance(methods, str) else methods
    lists = {name: value for name, value in settings.items() if name in GRIDS and isinstance(value, list)}
    federations, points = split_grid({**lists, **(grid or {})})
    settings = {name: value for name, value in settings.items() if name not in lists}
    base, folder = read_base(base, settings, out, compare)
    base = with_validation(base) if len(points) > 1 else base
    cells = {(f, p): _cells(base, methods, draws, seeds, (*f, *p)) for f in federations for p in points}
    for _, experiment, _ in next(iter(cells.values()))[: len(methods)] if len(base.model) > 1 else ():
        prepare(experiment, data_folder(data_dir))  # refuses methods that need one network, before any run
    done: dict[tuple[Point, Point, str], list[Run]] = {}
    for (federation, point), listed in cells.items():
        for method, experiment, name in listed:
            others = track(folder / name)
            with watch(_title(method, experiment, (*federation, *point))) as observers:
                again = f"compare again into {folder}"
                observers = [*observers, *others]
                run = run_to_end(experiment, folder / name, again, data_dir=data_dir, observers=observers)
            done.setdefault((federation, point, method), []).append(run)
    comparison = _join(folder, done, base.evaluate.validation if len(points) > 1 else None)
    _write(comparison)
    return comparison


def _title(method: str, experiment: Experiment, point: Point) -> str:
    parts = [method, format_point(point), f"draw {experiment.data_seed}", f"seed {experiment.seed}"]
    return ", ".join(filter(None, parts))


def _join(folder: Path, done: Mapping[tuple[Point, Point, str], Sequence[Run]], share: float | None) -> Comparison:
    """The runs as one table for each federation, with each method's best settings."""
    cells = [GridCell(f, p, Line(method, tuple(runs))) for (f, p, method), runs in done.items()]
    groups: dict[Point, dict[str, list[GridCell]]] = {}
    for cell in cells:
        groups.setdefault(cell.federation, {}).setdefault(cell.line.name, []).append(cell)
    settings: list[Setting] = []
    chosen: list[GridCell] = []
    for federation, methods in groups.items():
        best = [choose_best(each, each[0].line.metric) for each in methods.values()]
        lines = tuple(Line(_line_name(cell), cell.line.runs) for cell in best)
        first = lines[0].runs[0]
        title = title_of(first.manifest["experiment"], first.metric)
        more = format_point(tuple(pair for pair in federation if pair[0] not in ("data", "partition", "clients")))
        settings.append(Setting(", ".join(filter(None, (title, more))), lines))
        chosen += best
    if len(cells) == len(settings[0].lines):
        return Comparison(folder, tuple(settings))
    return Comparison(folder, tuple(settings), tuple(cells), tuple(chosen), share)


def read_grid(folder: Path) -> Comparison | None:
    """The comparison in the folder of a grid, from its runs; None if there is no grid."""
    done = {
        (tuple(row.cell["federation"].items()), tuple(row.cell["settings"].items()), row.method): [*map(Run, row.runs)]
        for row in read_comparison(folder)
        if row.cell is not None
    }
    if not done:
        return None
    points = {point for _, point, _ in done}
    first = next(iter(done.values()))[0]
    share = first.manifest["experiment"]["evaluate"]["validation"] if len(points) > 1 else None
    return _join(folder, done, share)


def _line_name(cell: GridCell) -> str:
    """The method with its chosen settings, as a report names lines: ``fedavg · lr=0.1``."""
    return name_row(cell.line.name, [format_point((pair,)) for pair in cell.point])


def _write(comparison: Comparison) -> None:
    write_json(comparison.out / COMPARISON, comparison.to_plain())
    overview = comparison.overview()
    tried = comparison.tabulate_tried()
    tables = [each for each in (overview, *tried) if each]
    for setting in comparison.settings:
        title = f"{setting.title}, {setting.repeats}"
        tables.append(Captioned(title, tabulate_results(setting.lines, setting.floor)))
        tables += [Captioned(f"{title}: new clients", joined)] if (joined := tabulate_newcomers(setting)) else []
    texts = [f"### {each.caption}\n\n{to_markdown(each.table)}" for each in tables]
    write_bytes(comparison.out / "table.md", "\n".join(texts).encode())
    names = {run.method: display_name(run.method) for s in comparison.settings for x in s.lines for run in x.runs}
    latex = [format_captioned_latex(overview, TableStyle(names))] if overview else []
    latex.append(format_tables(comparison.settings, "latex", TableStyle(names)))
    write_bytes(comparison.out / "table.tex", "\n".join(latex).encode())
    write_page(comparison.settings, comparison.report, extras=Extras(overview, tried))


def _cells(
    base: Experiment, methods: Sequence[str], draws: int, seeds: int, point: Point = ()
) -> list[tuple[str, Experiment, str]]:
    """Each method on each draw and seed, and the name of its folder; raises before any run if a method can't be made.

    Seeds move with the draw, so that no two draws share an initial model.
    """
    labels = {folder_name(m): m for m in methods}
    if len(labels) < len(methods) or not labels:
        raise ConfigError(f"methods is {', '.join(methods)!r}, but must name at least one method, each once.")
    registry.make("method", base.method)  # replaced below, but still checked
    cells: list[tuple[str, Experiment, str]] = []
    for k in range(draws * seeds):
        draw = base.data_seed + k // seeds
        seed = base.seed + k
        for label, method in labels.items():
            choice = registry.resolve("method", method)
            experiment = dataclasses.replace(base, method=choice, seed=seed, data_seed=draw)
            if point:
                experiment = with_settings(experiment, dict(point))
                registry.resolve_all(experiment)  # refuses values that can't be used
            code = collect_code(experiment).label  # so that an edited file gets folders of its own
            name = f"{label}-{code + '-' if code else ''}d{draw}-s{seed}"
            cells.append((method, experiment, f"{folder_of(point)}/{name}" if point else name))
    return cells


def _figures(line: Line, moment: str) -> dict[str, float]:
    others = (metric.name for metric in extra_columns(line.metric, line.runs[0].listed_metrics))
    whats = ("last", "best", "last_ten", CLIENT_MEAN.name, *others)
    known = {w: line.mean(w, moment) for w in whats if line.values(w, moment)}
    return known | {"std": line.spread("last", moment)}
