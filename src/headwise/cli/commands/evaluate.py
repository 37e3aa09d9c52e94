"""``headwise evaluate``: measure an exported model."""

from __future__ import annotations

from pathlib import Path

import click

from ...disk.jsontext import to_json
from ..options import OUTPUT_FILE, json_option, quiet_option
from .predict import CLIENT, DATA, MODEL, telling


@click.command(name="evaluate")
@MODEL
@DATA
@click.option(
    "-o", "--out", type=OUTPUT_FILE, help="page to write, with pictures and a table of each class, label or quantity"
)
@CLIENT
@json_option
@quiet_option
def command(model: Path, data: Path, out: Path | None, client: str, as_json: bool, quiet: bool) -> None:
    """Measure the exported MODEL on DATA, which has the target, by the run's metrics. DATA is as for predict."""
    from ...exports.loading import load_model
    from ...exports.quality import count_samples, format_scores, measure_quality, write_page

    loaded = load_model(model)
    quality = measure_quality(loaded, data, on_progress=telling(quiet or as_json), client=client)
    if out is not None:
        write_page(loaded, data, quality, out)
    if as_json:
        click.echo(to_json({**quality.plain(), "classes": loaded.classes}))
        return
    click.echo(count_samples(quality))
    for name, value in format_scores(quality):
        click.echo(f"{name:20} {value}")
    if out is not None:
        click.echo(f"The page is in {out}.")
