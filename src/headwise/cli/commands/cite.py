"""``headwise cite``: the papers behind a run."""

from __future__ import annotations

from pathlib import Path

import click

from ..options import INPUT_FOLDER


@click.command(name="cite")
@click.argument("runs", nargs=-1, required=True, type=INPUT_FOLDER)
def command(runs: tuple[Path, ...]) -> None:
    """Print BibTeX for Headwise and for every method in RUNS, folders of runs or comparisons."""
    from ...app.citing import cite_methods
    from ...report.results import collect

    methods = [run.method for setting in collect(runs) for line in setting.lines for run in line.runs]
    click.echo(cite_methods(methods), nl=False)
