"""``headwise report`` and ``cite``: runs as a page, as tables and figures for a paper, and the papers behind them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...errors import ConfigError
from ..options import INPUT_FOLDER, OUTPUT_FILE, OUTPUT_FOLDER, moved_option

if TYPE_CHECKING:
    from ...report.page import Captioned, Scatter
    from ...report.results import Setting


@click.command(name="report")
@click.argument("runs", nargs=-1, required=True, type=INPUT_FOLDER)
@click.option("-o", "--out", type=OUTPUT_FILE, help="page to write  [report.html]")
@click.option("--table", "form", help="print the table of results: latex, markdown or csv")
@click.option(
    "--columns", help="columns of a LaTeX table, words of their headings separated by semicolons, or all  [scores]"
)
@click.option("--caption", help="caption of a LaTeX table")
@click.option("--label", help="label of a LaTeX table, for example tab:results")
@click.option("--figures", type=OUTPUT_FOLDER, help="folder for figures as SVG and PDF")
@click.option("--confusion", is_flag=True, help="also show which classes each method confuses, in its first run")
@click.option("--features", metavar="NAME", help="also show this client's features in two dimensions")
@click.option(
    "--projection", default="pca", show_default=True, help="how to project features: pca, or tsne with scikit-learn"
)
@moved_option
def command(
    runs: tuple[Path, ...],
    out: Path | None,
    form: str | None,
    columns: str | None,
    caption: str | None,
    label: str | None,
    figures: Path | None,
    confusion: bool,
    features: str | None,
    projection: str,
    data_dir: Path | None,
) -> None:
    """Make one page of RUNS, folders of runs or comparisons. Runs that differ only in their seed become one line.

    A comparison's folder shows its last comparison; runs that are not part of it are listed as left out.

    A grid's folder has its own page: methods by settings, with the values chosen on validation samples.

    With --table or --figures, the page is written only if you give --out.
    """
    if form != "latex" and (
        given := [k for k, v in {"columns": columns, "caption": caption, "label": label}.items() if v]
    ):
        raise ConfigError(f"{given[0]} is given, but only --table latex has one.")
    from ...app.citing import display_name
    from ...report.page import Extras, write_page
    from ...report.results import collect, select_runs
    from ...report.tables import TableStyle, format_captioned, format_tables
    from ...runs.comparison import read_comparison

    damaged: list[str] = []
    lines: list[object] = []
    left_out: list[str] = []
    grid = None
    if len(runs) == 1 and any(row.cell is not None for row in read_comparison(runs[0])):
        from ...app.compare import read_grid  # which imports torch

        select_runs(runs[0], left_out)
        grid = read_grid(runs[0])
    settings = grid.settings if grid else collect(runs, damaged, left_out)
    damaged += left_out
    overview = grid.overview() if grid else None
    tried = grid.tabulate_tried() if grid else []
    for sentence in damaged:
        click.echo(f"left out: {sentence}", err=True)
    names = {run.method: display_name(run.method) for s in settings for line in s.lines for run in line.runs}
    style = TableStyle(names, [c.strip() for c in (columns or "").split(";") if c.strip()], caption or "", label or "")
    table = None if form is None else format_tables(settings, form, style)
    if form is not None and table is not None and overview is not None:
        table = f"{format_captioned(overview, form, style)}\n{table}"
    if figures is not None:
        from ...report.figures import write_figures

        lines += write_figures(settings, figures, names)
    if out is not None or (form is None and figures is None):
        confusions = [_tabulate_confusions(s, data_dir) for s in settings] if confusion else []
        scatters = [_draw_features(s, features, projection, data_dir) for s in settings] if features else []
        extras = Extras(overview, tried, confusions, scatters)
        lines.append(f"The report is in {write_page(settings, out or Path('report.html'), damaged, extras)}.")
    for line in lines:
        click.echo(line, err=table is not None)
    click.echo(table, nl=False)


def _tabulate_confusions(setting: Setting, data_dir: Path | None) -> list[Captioned]:
    from ...exports.run_models import Models
    from ...exports.views import count_confusion
    from ...report.page import Captioned
    from ...report.tables import tabulate_confusion

    tables: list[Captioned] = []
    for line in setting.ranking:
        counts = count_confusion(Models(line.runs[0], data_dir))
        caption = f"{line.name}: test samples of each class (rows), by the class that clients' models predict"
        tables.append(Captioned(caption, tabulate_confusion(counts, setting.classes or ())))
    return tables


def _draw_features(setting: Setting, client: str, projection: str, data_dir: Path | None) -> list[Scatter]:
    from ...exports.run_models import Models
    from ...exports.views import map_features
    from ...report.page import Scatter

    scatters: list[Scatter] = []
    for line in setting.ranking:
        run = line.runs[0]
        shown = map_features(Models(run, data_dir), run.number_of(client), projection)
        caption = f"{line.name}: features of client {shown.client}'s test samples ({shown.how})"
        scatters.append(Scatter(caption, shown.points, setting.classes or ()))
    return scatters


@click.command(name="cite")
@click.argument("runs", nargs=-1, required=True, type=INPUT_FOLDER)
def cite(runs: tuple[Path, ...]) -> None:
    """Print BibTeX for Headwise and for every method in RUNS, folders of runs or comparisons."""
    from ...app.citing import cite_methods
    from ...report.results import collect

    methods = [run.method for setting in collect(runs) for line in setting.lines for run in line.runs]
    click.echo(cite_methods(methods), nl=False)
