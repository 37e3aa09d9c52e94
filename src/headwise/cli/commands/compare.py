"""``headwise compare``: several methods on several draws of a partition."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from ...disk.jsontext import to_json
from ...disk.paths import input_file
from ...errors import ConfigError
from ...settings.fields import Seeds, convert
from ..options import experiment_options, literal, read_options
from ..output import table_text


@click.command(name="compare")
@click.argument("what", nargs=-1, metavar="[METHOD]... [CONFIG.toml]")
@click.option("--methods", help="methods separated by commas, with options: fedavg,fedrep:head_epochs=5")
@click.option("--draws", default="3", show_default=True, help="partitions to draw (splits, where clients are natural)")
@click.option("--seeds", default="1", show_default=True, help="seeds of each draw")
@click.option(
    "--grid",
    multiple=True,
    metavar="KEY=VALUES",
    help="values of a setting: train.lr=0.01,0.1 (chosen on validation samples), or partition=dirichlet:0.1,iid "
    "(a table each); repeatable",
)
@experiment_options("new, or the one to continue")
def command(
    what: tuple[str, ...], methods: str | None, draws: str, seeds: str, grid: tuple[str, ...], **options: Any
) -> None:
    """Run several methods on the same draws of a partition, each with a seed of its own.

    Use the same --out again to continue where it stopped; finished runs are not repeated.
    """
    configs = [w for w in what if w.endswith(".toml")]
    if len(configs) > 1:
        raise ConfigError(f"there are {len(configs)} TOML files, but at most one is allowed.")
    named = [w for w in what if not w.endswith(".toml")]
    for text in (methods, options["method"]):
        named += text.split(",") if text else []
    given = read_options({**options, "method": None})
    base = given.experiment(input_file(configs[0], "CONFIG.toml") if configs else None)

    from ...app.compare import compare
    from ...app.grid import parse_grid
    from ...report.tables import tabulate_results
    from ...trackers import make_trackers

    comparison = compare(
        base,
        named,
        convert(literal(draws), Seeds, "draws"),
        given.out,
        seeds=convert(literal(seeds), Seeds, "seeds"),
        data_dir=given.data_dir,
        watch=given.watch,
        track=partial(make_trackers, given.tracked),
        grid=parse_grid(grid),
    )
    if given.as_json:
        click.echo(to_json(comparison.to_plain()))
        return
    for captioned in filter(None, (comparison.overview(), *comparison.tabulate_tried())):
        click.echo(table_text(*captioned.table, title=captioned.caption, numbers_from=1, width=120))
    for setting in comparison.settings:
        title = f"{setting.title}, {setting.repeats}" if comparison.grid else setting.repeats
        table = tabulate_results(setting.lines, setting.floor)
        click.echo(table_text(*table, title=title, numbers_from=1, width=120))
    click.echo("\n".join(comparison.words()))
    click.echo(
        f"Runs, comparison.json, table.md and table.tex are in {comparison.out}; the report is {comparison.report}"
    )
