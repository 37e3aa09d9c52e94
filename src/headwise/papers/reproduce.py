"""Run a table's cells one after the other, and compare the results with the printed numbers.

A cell's folder is named by the hash of its experiment: finished cells never run again, interrupted ones resume, and
tables that share an experiment share its run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import fmean, median

from ..app.compare import Watch
from ..app.launch import data_folder, run_to_end
from ..disk.files import make_folder, write_bytes, write_json
from ..errors import ConfigError
from ..log.metrics import ACCURACY
from ..log.schema import Seconds, figures
from ..report.page import write_page
from ..report.results import collect
from ..runs.query import Run
from ..settings.options import Workers
from .arithmetic import agreement, compute
from .cells import RUN, STANDALONE, Ask, Cell, cell_of, cells_of, recipe_of, with_workers
from .cost import Costs, clock
from .results import BY_HAND, SMALL, Reproduction, Row, judge_accuracy, judge_exact, judge_ratio, judge_rounds
from .tables import RATIOS, UNIT, Column, Moment, Printed, Recipe

CELLS = Path("runs/reproduce/cells")


def open_cells(ask: Ask, cells: Path) -> list[Cell]:
    if any(cells.glob("*.csv")):
        raise ConfigError(
            f"cells is {str(cells)!r}, which holds collected cells: they can be drawn with --figure, but runs need a "
            f"folder of their own."
        )
    return [c for c in cells_of(ask) if not is_finished(cells / c.folder)]


def estimate(asks: Sequence[Ask], cells: Path, workers: Workers | None, data_dir: Path | None) -> list[list[float]]:
    """Seconds for every open cell, for each of these asks."""
    costs = Costs(data_folder(data_dir))

    def seconds(cell: Cell) -> float:
        begun = len(Run(cells / cell.folder).rounds)
        return costs.seconds(with_workers(cell.experiment, workers)) * (1 - begun / cell.experiment.rounds)

    return [[seconds(cell) for cell in open_cells(ask, cells)] for ask in asks]


def largest(asks: Sequence[Ask], seconds: Sequence[Sequence[float]], budget: float) -> tuple[Ask, list[float]]:
    """The first ask whose scale fits into the budget; asks must go from the largest scale to the smallest."""
    for ask, each in zip(asks, seconds, strict=True):
        if sum(each) <= budget:
            return ask, list(each)
    sums = [f"{a.scale.name} about {clock(sum(s))}" for a, s in zip(asks, seconds, strict=True)]
    raise ConfigError(
        f"budget is {clock(budget)}, but no scale of {asks[0].name} fits: {', '.join(sums)}. Ask for fewer columns, "
        f"methods or seeds."
    )


def reproduce(
    ask: Ask,
    out: Path,
    *,
    cells: Path = CELLS,
    seconds: Sequence[float] = (),
    workers: Workers | None = None,
    data_dir: Path | None = None,
    watch: Watch = lambda title: nullcontext(()),
    command: str = "",
) -> Reproduction:
    """Run the open cells and write the table after each; `seconds` are the open cells' estimates."""
    waiting = open_cells(ask, cells)
    exact = exact_rows(ask)
    table = _write(ask, cells, exact, command, out)  # before training: `out` may not be writable
    left = [*seconds] or [0.0] * len(waiting)
    begun = time.monotonic()
    done = 0.0
    for number, cell in enumerate(waiting):
        pace = (time.monotonic() - begun) / done if done else 1.0
        rest = f", {clock(sum(left[number:]) * pace)} left for all" if seconds else ""
        title = f"{number + 1}/{len(waiting)} {cell.method}, {cell.column}, seed {cell.experiment.seed}{rest}"
        with watch(title) as observers:
            experiment = with_workers(cell.experiment, workers)
            folder = cells / cell.folder
            run_to_end(experiment, folder, "run the same command again", data_dir=data_dir, observers=observers)
        done += left[number]
        table = _write(ask, cells, exact, command, out)
    if finished := [f for cell in cells_of(ask) if is_finished(f := cells / cell.folder)]:
        write_page(collect(finished), out / "report.html")
    return table


Exact = Mapping[tuple[str, str], Row]
"""by method and column"""


def exact_rows(ask: Ask) -> Exact:
    """The cells that need no run; computed once, since counting messages takes a moment."""
    columns = [c for c in ask.columns if c.measure not in RUN]
    return {(m, c.name): _exact_row(ask, m, c) for c in columns for m in ask.methods}


def rows_of(ask: Ask, cells: Path, exact: Exact) -> tuple[Row, ...]:
    """Every requested cell of the table, run or not."""
    places = [(m, c) for c in ask.columns for m in ask.methods]
    trained = {c.name: _ratio_row if c.measure in RATIOS else _run_row for c in ask.columns}
    return tuple(exact.get((m, c.name)) or trained[c.name](ask, m, c, cells) for m, c in places)


def _exact_row(ask: Ask, method: str, column: Column) -> Row:
    printed = ask.table.cell(method, column.name)
    if printed.missing:
        return Row(method, column.name, printed, "nothing printed to compare with")
    ours, beside, tolerance = compute(ask, method, column)
    verdict = judge_exact(beside, ours, tolerance, agreement(ask, column))
    if isinstance(ours, str):
        return Row(method, column.name, printed, verdict, text=ours)
    return Row(method, column.name, beside, verdict, ours=(ours,))


def _run_row(ask: Ask, method: str, column: Column, cells: Path) -> Row:
    recipe = recipe_of(ask, method)
    printed = ask.table.cell(method, column.name)
    moment = ask.moment(recipe, column)
    runs, alone = (_runs(ask, column, r, cells) for r in (recipe, STANDALONE))
    if not runs:
        return Row(method, column.name, printed, "not run yet")
    values = [best_score(run, ask, column, moment) for run in runs]
    ours = tuple(v for v in values if v is not None)
    rounds = runs[0].manifest["experiment"]["rounds"]
    floor = floor_in(runs[0].manifest["partition"]["floor"], ask)
    if column.measure == "rounds":
        ours = ours if len(ours) == len(values) else ()  # averaging only the seeds that reach it would look too good
        verdict = judge_rounds(printed, fmean(ours) if ours else None, rounds) + _remark(ask)
        floor = None
    else:
        unlike = SMALL if ask.scaled else BY_HAND if ask.changed else ""
        verdict = judge_accuracy(printed, fmean(ours), floor, unlike=unlike) if ours else "nothing was measured"
    beside = [best_score(run, ask, column, "stale") for run in alone if column.moment is None]
    known = [v for v in beside if v is not None]
    others = "" if column.moment else _others(ask, column, runs, moment)
    late = [late_score(run, ask, moment) for run in runs] if column.measure == "accuracy" and ours else []
    refused = [n.text for n in ask.table.notes if not n.comparable and n.applies(method, column.name)]
    verdict = f"can't be compared: {refused[0]}" if refused else verdict
    return Row(
        method, column.name, printed, verdict, ours, "", len(runs), rounds, moment, others,
        fmean(late) if late else None, floor, fmean(known) if known else None,
    )  # fmt: skip


def _remark(ask: Ask) -> str:
    return " (scaled)" if ask.scaled else " (other settings than the paper's)" if ask.changed else ""


def _ratio_row(ask: Ask, method: str, column: Column, cells: Path) -> Row:
    """Our figures divided by FedAvg's, seed by seed; the printed one divided by FedAvg's printed one."""
    recipe = recipe_of(ask, method)
    unit = recipe_of(ask, UNIT)
    printed, whole = (ask.table.cell(m, column.name) for m in (method, UNIT))
    if printed.mean and whole.mean:
        printed = Printed(f"{printed.mean / whole.mean:.2f} x {UNIT} ({printed.text})", printed.mean / whole.mean)
    both = [_runs(ask, column, r, cells) for r in (recipe, unit)]
    if min(map(len, both)) < ask.seeds:
        return Row(method, column.name, printed, "not run yet")
    values = [
        [measure_effort(run, ask, column, ask.moment(r, column)) for run in runs]
        for r, runs in zip((recipe, unit), both, strict=True)
    ]
    ours = tuple(a / b for a, b in zip(*values, strict=True) if a and b)
    rounds = both[0][0].manifest["experiment"]["rounds"]
    if len(ours) < ask.seeds:
        verdict = f"still rising after {rounds} rounds"
        return Row(method, column.name, printed, verdict, seeds=ask.seeds, rounds=rounds)
    verdict = judge_ratio(printed, fmean(ours)) + _remark(ask)
    return Row(method, column.name, printed, verdict, ours, seeds=ask.seeds, rounds=rounds)


def _others(ask: Ask, column: Column, runs: list[Run], moment: str) -> str:
    """The same figure at the other moments of these runs."""
    figures: list[str] = []
    for other in ("pre", "stale"):
        values = [best_score(run, ask, column, other) for run in runs if other != moment]
        known = [v for v in values if v is not None]
        figures += [f"{other} {fmean(known):,.2f}"] if known else []
    return ", ".join(figures)


def _runs(ask: Ask, column: Column, recipe: Recipe, cells: Path) -> list[Run]:
    folders = [cells / cell_of(ask, column, recipe, seed).folder for seed in range(ask.seeds)]
    return [Run(f) for f in folders if is_finished(f)]


def is_finished(folder: Path) -> bool:
    return (folder / "manifest.json").exists() and Run(folder).complete


def _write(ask: Ask, cells: Path, exact: Exact, command: str, out: Path) -> Reproduction:
    """Write the table as Markdown, CSV and JSON, from the runs so far; add further formats here."""
    table = Reproduction(ask, rows_of(ask, cells, exact), command)
    make_folder(out)
    write_bytes(out / "table.md", table.markdown().encode())
    write_bytes(out / "table.csv", table.csv().encode())
    write_json(out / "table.json", table.to_plain())
    return table


NEAR = 0.01
"""a run has converged in the first round this close to its best accuracy"""


def curve(run: Run, moment: Moment, metric: str) -> list[tuple[int, float]]:
    rows = [(row["round"], figures(row, moment)) for row in run.rounds]
    return [(t, values[metric]) for t, values in rows if metric in values]


def best_score(run: Run, ask: Ask, column: Column, moment: Moment) -> float | None:
    """The best accuracy in percent, or the first round at the target; None if nothing was measured or reached."""
    points = curve(run, moment, ask.metric)
    if column.measure == "rounds":
        return next((float(t) for t, value in points if value >= (column.target or 0)), None)
    last = run.manifest["experiment"]["rounds"]
    values = [v for t, v in points if ask.window is None or t > last - ask.window]
    return max(values) * 100 if values else None


LAST = 4
"""evaluations at the end of a run"""


def late_score(run: Run, ask: Ask, moment: Moment) -> float:
    """The mean of the last evaluations, in percent."""
    return 100 * fmean(value for _, value in curve(run, moment, ask.metric)[-LAST:])


def measure_effort(run: Run, ask: Ask, column: Column, moment: Moment) -> float | None:
    """Seconds per round without evaluation, rounds to convergence, or their product; None if it still rises."""
    pace = median(_seconds(row["seconds"]) for row in run.rounds if row["round"])
    if column.measure == "pace":
        return pace
    points = curve(run, moment, ask.metric)
    best = max((value for _, value in points), default=0.0)
    t = next((t for t, value in points[:-1] if value >= best - NEAR), None)
    return None if t is None else t * (pace if column.measure == "duration" else 1)


def _seconds(spent: Seconds) -> float:
    workers = {k: v for k, v in spent["workers"].items() if k not in ("evaluation", "idle")}
    return spent.get("server", 0.0) + sum(workers.values())


def floor_in(floors: Mapping[str, float | None], ask: Ask) -> float | None:
    """What guessing each client's most frequent class scores, in percent, averaged as in the paper."""
    value = floors["weighted" if ask.metric == ACCURACY.name else "mean"]
    return None if value is None else float(value) * 100
