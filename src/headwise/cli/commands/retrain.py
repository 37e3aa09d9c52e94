"""``headwise retrain``: repeat a run as if a client had never been there."""

from __future__ import annotations

from pathlib import Path

import click

from ..options import INPUT_FOLDER, OUTPUT_FOLDER, json_option, moved_option, quiet_option
from ..output import table_text
from .run import show


@click.command(name="retrain")
@click.argument("run", type=INPUT_FOLDER)
@click.option("--without", "without", multiple=True, required=True, metavar="NAME", help="client to forget; repeatable")
@click.option("--out", type=OUTPUT_FOLDER, help="folder for the results; it must be new")
@moved_option
@json_option
@quiet_option
def command(
    run: Path, without: tuple[str, ...], out: Path | None, data_dir: Path | None, as_json: bool, quiet: bool
) -> None:
    """Repeat RUN exactly as if these clients had never been there, and show what that changes for the others."""
    from ...app.retrain import PAGE, retrain
    from ...report.page import tabulate_forgotten
    from ...runs.query import Run
    from ..display import show_progress

    with show_progress(run.name, quiet=quiet) as observers:
        retrained = retrain(run, without, out, data_dir=data_dir, observers=observers)
    show(retrained, as_json)
    if not as_json:
        click.echo(table_text(*tabulate_forgotten(Run(run), retrained), numbers_from=1, width=100, wrapped=True))
        click.echo(f"on a page: {retrained.path / PAGE}")
