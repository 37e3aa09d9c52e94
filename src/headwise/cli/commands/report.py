"""``headwise report``: turn runs into a page, tables and figures."""

from __future__ import annotations

from pathlib import Path

import click

from ..options import INPUT_FOLDER, OUTPUT_FILE, OUTPUT_FOLDER


@click.command(name="report")
@click.argument("runs", nargs=-1, required=True, type=INPUT_FOLDER)
@click.option("-o", "--out", type=OUTPUT_FILE, help="page to write  [report.html]")
@click.option("--table", "form", help="print the table of results: latex, markdown or csv")
@click.option("--figures", type=OUTPUT_FOLDER, help="folder for figures as SVG and PDF")
def command(runs: tuple[Path, ...], out: Path | None, form: str | None, figures: Path | None) -> None:
    """Make one page of RUNS, folders of runs or comparisons. Runs that differ only in their seed become one line.

    With --table or --figures, the page is written only if you give --out.
    """
    from ...report.page import write_page
    from ...report.results import collect
    from ...report.tables import tables

    damaged, lines = list[str](), list[object]()
    settings = collect(runs, damaged)
    for sentence in damaged:
        click.echo(f"left out: {sentence}", err=True)
    table = None if form is None else tables(settings, form)
    if figures is not None:
        from ...report.figures import write_figures

        lines += write_figures(settings, figures)
    if out is not None or (form is None and figures is None):
        lines.append(f"The report is in {write_page(settings, out or Path('report.html'), damaged)}.")
    for line in lines:
        click.echo(line, err=table is not None)
    click.echo(table, nl=False)
