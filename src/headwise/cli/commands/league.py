"""``headwise league``: every method on small federations that differ in kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...settings.fields import Seeds, convert
from ..options import OUTPUT_FOLDER, data_option, json_option, literal, quiet_option


@click.command(name="league")
@click.argument("federations", nargs=-1, metavar="[FEDERATION|FILE.toml]...")
@click.option("--version", default="v1", show_default=True, help="version of the league, a set of federations")
@click.option("--methods", default="", help="methods separated by commas, or files of your own  [all]")
@click.option("--settings", default="default", show_default=True, help="default, tuned, or default,tuned")
@click.option("--draws", default="5", show_default=True, help="draws of each federation")
@click.option("--draw", "only", default=None, help="only the draw with this number, from 0")
@click.option("--out", type=OUTPUT_FOLDER, default="runs/league", show_default=True, help="folder of the results")
@click.option("--keep-runs", is_flag=True, help="keep the folder of every run")
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
    out: Path,
    keep_runs: bool,
    data_dir: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Compare all methods on small federations that differ in kind: label skew, feature shift, few samples and so on.

    Cells (a method on a draw of a federation) that are in --out already are not run again.
    """
    count = convert(literal(draws), Seeds, "draws")

    from ...app.launch import data_folder
    from ...league.federations import find_federations
    from ...league.play import play

    chosen = [int(convert(literal(only), Seeds, "draw"))] if only is not None else [*range(count)]
    kinds: Any = [text for text in settings.split(",") if text]
    play(
        find_federations(version, federations),
        out,
        data_folder(data_dir),
        methods=[name for name in methods.split(",") if name],
        settings=kinds,
        draws=chosen,
        keep=keep_runs,
        note=(lambda line: None) if quiet else (lambda line: click.echo(line, err=True)),
    )
