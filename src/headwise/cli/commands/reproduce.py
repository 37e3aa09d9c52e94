"""``headwise reproduce``: run a published table."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...disk.jsontext import to_json
from ...errors import ConfigError
from ...papers.cells import Ask, ask_for, with_settings, with_sweep
from ...settings.fields import Seeds, convert, literal
from ...settings.options import Workers
from ..options import FLAGS, OUTPUT_FOLDER, data_option, json_option, quiet_option, set_option
from ..output import table_text

if TYPE_CHECKING:
    from ...papers.results import Reproduction


@click.command(name="reproduce")
@click.argument("table")
@click.option("--columns", multiple=True, help="columns, or words of their names, separated by semicolons  [all]")
@click.option("--methods", help="methods of the table, separated by commas  [all]")
@click.option("--seeds", default="1", help="number of seeds, starting at 0  [1]")
@click.option("--scale", help="full, or a smaller scale that headwise describe TABLE lists  [full]")
@click.option(
    "--rules", default="paper", help="follow the paper, or its public code where they differ: paper, code  [paper]"
)
@set_option("train.epochs=10")
@click.option(
    "--sweep",
    "sweeps",
    multiple=True,
    help="a setting with several values, for example method.beta=0.1,0.3,0.5; given twice, all pairs",
)
@click.option("--budget", help="use the largest scale that fits into this time, for example 30m")
@click.option("--plan", "only_plan", is_flag=True, help="show what would run and how long it would take")
@click.option("--figure", is_flag=True, help="draw the accuracy over the rounds of finished cells, run nothing")
@click.option("--out", type=OUTPUT_FOLDER, help="folder for the table  [runs/reproduce/PAPER-TABLE...]")
@click.option("--cells", type=OUTPUT_FOLDER, help="folder for the runs  [runs/reproduce/cells]")
@click.option("--workers", help=FLAGS["workers"][1])
@data_option
@json_option
@quiet_option
def command(
    table: str,
    columns: tuple[str, ...],
    methods: str | None,
    seeds: str,
    scale: str | None,
    rules: str,
    changes: tuple[str, ...],
    sweeps: tuple[str, ...],
    budget: str | None,
    only_plan: bool,
    figure: bool,
    out: Path | None,
    cells: Path | None,
    workers: str | None,
    data_dir: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run TABLE, for example fedgmh/2, and compare the results with the printed numbers.

    Repeat the same command to continue where it stopped; finished cells are not run again.
    """
    ask = ask_for(
        table,
        columns=[c for text in columns for c in _names(text, ";", "columns")],
        methods=() if methods is None else _names(methods, ",", "methods"),
        scale=scale,
        rules=rules,
        seeds=convert(literal(seeds), Seeds, "seeds"),
    )
    ask = with_settings(ask, changes) if changes else ask
    for sweep in sweeps:
        ask = with_sweep(ask, sweep)
    count = None if workers is None else Workers.parse(workers, "workers")
    from ...papers import reproduce
    from ..display import show_progress

    folder = cells or reproduce.CELLS
    home = out or Path("runs/reproduce") / ask.folder
    if figure:
        _draw(ask, folder, home)
        return
    ask, seconds = _fit_budget(ask, scale, folder, count, data_dir, budget)
    _announce(ask, seconds, count, quiet)
    if only_plan:
        click.echo(_plan_text(ask, folder, seconds, as_json))
        return
    done = reproduce.reproduce(
        ask,
        home,
        cells=folder,
        seconds=seconds,
        workers=count,
        data_dir=data_dir,
        watch=partial(show_progress, quiet=quiet),
        command=shlex.join(["headwise", *sys.argv[1:]]),
    )
    click.echo(
        to_json(done.to_plain())
        if as_json
        else f"{_format_result(done)}\nThe table is in {home}, its runs in {folder}."
    )


def _names(text: str, separator: str, what: str) -> list[str]:
    names = [name.strip() for name in text.split(separator) if name.strip()]
    if not names:
        raise ConfigError(f"{what} is {text!r}, but must name at least one; without --{what}, all are taken.")
    return names


def _fit_budget(
    ask: Ask, scale: str | None, cells: Path, workers: Workers | None, data_dir: Path | None, budget: str | None
) -> tuple[Ask, list[float]]:
    """The scale asked for, or the largest that fits the budget, and the seconds that each open cell will take."""
    from ...app.tune import parse_budget
    from ...papers import reproduce

    if not budget:
        return ask, reproduce.estimate([ask], cells, workers, data_dir)[0]
    if scale:
        raise ConfigError(
            f"scale is {scale!r} and budget is {budget!r}, but a budget chooses the scale: give only one of them."
        )
    limit = parse_budget(budget)
    asks = [dataclasses.replace(ask, scale=s) for s in ask.paper.scales]
    return reproduce.largest(asks, reproduce.estimate(asks, cells, workers, data_dir), limit)


def _draw(ask: Ask, cells: Path, home: Path) -> None:
    from ...papers.figure import missing_methods, write_curves

    for path in write_curves(ask, cells, home):
        click.echo(path)
    for column in ask.columns:
        if column.measure == "accuracy" and (missing := missing_methods(ask, column, cells)):
            click.echo(f"{column.name}: not finished, so not drawn: {', '.join(missing)}.", err=True)


def _announce(ask: Ask, seconds: list[float], workers: Workers | None, quiet: bool) -> None:
    from ...papers.cost import clock

    if quiet:
        return
    if not seconds:
        click.echo(f"{ask.name}, scale {ask.scale.name}: there is nothing to train.", err=True)
        return
    beside = f" on {workers.count} workers" if workers and workers.count > 1 else ""
    click.echo(
        f"{ask.name}, scale {ask.scale.name} ({ask.scale.words}), rules of the {ask.rules}: {len(seconds)} runs to go, "
        f"about {clock(sum(seconds))}{beside} at the current speed of this machine.",
        err=True,
    )


def _plan_text(ask: Ask, cells: Path, seconds: list[float], as_json: bool) -> str:
    from ...papers import cost, reproduce

    runs = list(zip(reproduce.open_cells(ask, cells), seconds, strict=True))
    if as_json:
        rows = [{"method": c.method, "column": c.column, "seed": c.experiment.seed, "run": c.folder, "seconds": s}
                for c, s in runs]  # fmt: skip
        return to_json({"table": ask.name, "scale": ask.scale.name, "runs": rows, "seconds": sum(seconds)})
    lines = [f"{c.method}, {c.column}, seed {c.experiment.seed}: {cost.clock(s)}" for c, s in runs]
    return "\n".join([*lines, f"In all {cost.clock(sum(seconds))}." if runs else "There is nothing to train."])


def _format_result(result: Reproduction) -> str:
    head, rows = result.table()
    title = f"{result.ask.name}: {result.ask.table.title}"
    text = table_text(head, rows, title=title, numbers_from=len(head), width=240)
    return "\n".join([text, *result.words()])
