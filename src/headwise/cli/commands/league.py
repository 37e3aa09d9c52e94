"""``headwise league``: every method on small federations that differ in kind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ...disk.jsontext import to_json
from ...disk.paths import input_file
from ...settings.fields import Count, Natural, Seeds, convert
from ..options import OUTPUT_FOLDER, data_option, json_option, literal, quiet_option


@click.command(name="league")
@click.argument("federations", nargs=-1, metavar="[FEDERATION|FILE.toml]...")
@click.option("--version", default="v1", show_default=True, help="version of the league, a set of federations")
@click.option("--methods", default="", help="methods separated by commas, or files of your own  [all]")
@click.option("--settings", default="default", show_default=True, help="default, tuned, or default,tuned")
@click.option("--draws", default="5", show_default=True, help="draws of each federation")
@click.option("--draw", "only", help="only the draw with this number, from 0")
@click.option("--against", help="league.csv of an earlier league: show what has changed since")
@click.option("--out", type=OUTPUT_FOLDER, default="runs/league", show_default=True, help="folder of the results")
@click.option("--workers", help="cells to run at the same time  [one per core]")
@click.option("--keep-runs", is_flag=True, help="keep the folder of every run")
@click.option("--no-run", is_flag=True, help="run nothing: show the results so far, and what is missing")
@data_option
@json_option
@quiet_option
def command(
    federations: tuple[str, ...],
    version: str,
    methods: str,
    settings: str,
    draws: str,
    only: str | None,
    against: str | None,
    out: Path,
    workers: str | None,
    keep_runs: bool,
    no_run: bool,
    data_dir: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Compare all methods on small federations that differ in kind: label skew, feature shift, few samples and so on.

    Cells (a method on a draw of a federation) that are in --out already are not run again. To add a method or a
    federation, name its file. The tables show all cells in --out, not only those that are asked for here.
    """
    numbers = [*range(convert(literal(draws), Seeds, "draws"))]
    if only is not None:
        numbers = [convert(literal(only), Natural, "draw")]
    at_once = None if workers is None else convert(literal(workers), Count, "workers")
    old = input_file(against, "--against") if against else None

    from ...app.launch import data_folder
    from ...engine.host import cores
    from ...league.cells import find_federations, read_csv
    from ...league.play import play, write_league

    before = read_csv(old) if old else None
    kinds: Any = [text for text in settings.split(",") if text]
    to_run = find_federations(version, federations)
    league = play(
        to_run,
        out,
        data_folder(data_dir),
        methods=[name for name in methods.split(",") if name],
        settings=kinds,
        draws=numbers,
        run=not no_run,
        keep=keep_runs,
        workers=at_once or cores(),
        note=(lambda line: None) if quiet else (lambda line: click.echo(line, err=True)),
        shown=find_federations(version, []),
    )
    write_league(league, out)
    _show(league, [federation.name for federation in to_run], before, out, as_json)


def _show(league: Any, names: Sequence[str], before: Any, out: Path, as_json: bool) -> None:
    from ...league.standings import (
        STAR,
        compare_leagues,
        describe_changes,
        federation_table,
        standings_of,
        tabulate_changes,
    )
    from ..output import table_text

    standings = standings_of(league.results)
    changes = compare_leagues(before or [], league.results)
    words = [*league.words(), *standings.words(), *(describe_changes(changes) if before is not None else [])]
    if as_json:
        plain = {"out": str(out), "words": words, "missing": league.missing}
        click.echo(to_json({**plain, "left_out": league.left_out, "standings": standings.to_plain()}))
        return
    if standings.table:
        click.echo(table_text(*standings.overview(), title="All federations", numbers_from=2, width=140))
    only = [group for group in standings.groups if len(standings.groups) == 1 or [group.name] == names]
    for group in only:
        click.echo(table_text(*federation_table(group), title=group.name, numbers_from=1, width=140))
        click.echo(STAR)
    if not all(change.identical for change in changes):
        click.echo(table_text(*tabulate_changes(changes), title="Changes", numbers_from=2, width=120))
    click.echo("\n".join(words))
    click.echo(f"Page: {out / 'league.html'}; table: {out / 'league.csv'}")
