"""``headwise evaluate``: measure an exported model."""

from __future__ import annotations

from pathlib import Path

import click

from ...disk.jsontext import to_json
from ..options import OUTPUT_FILE, json_option, quiet_option
from .predict import CLIENT, DATA, MODEL, print_progress

UNKNOWN = "Warning: these are not the data of the model's run as it divided them: some may be training samples."


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
    """Measure the exported MODEL on DATA, which has the target, by the run's metrics. DATA is as for predict.

    If DATA is the data.toml of the model's run, only its test samples count.
    """
    from ...exports.loading import load_model
    from ...exports.quality import (
        compare_with_floor,
        count_samples,
        find_held_out,
        format_scores,
        measure_quality,
        write_page,
    )

    loaded = load_model(model)
    held_out = find_held_out(loaded, data)
    progress = print_progress(quiet or as_json)
    quality = measure_quality(loaded, data, on_progress=progress, client=client, held_out=held_out)
    if held_out is None:
        click.echo(UNKNOWN, err=True)
    if out is not None:
        write_page(loaded, data, quality, out)
    if as_json:
        click.echo(to_json({**quality.plain(), "classes": loaded.classes, "held_out": held_out is not None}))
        return
    click.echo(f"{'Test samples of the run: ' if held_out else ''}{count_samples(quality)}")
    for name, value in format_scores(quality):
        click.echo(f"{name:20} {value}")
    for sentence in compare_with_floor(loaded, quality):
        click.echo(sentence)
    if out is not None:
        click.echo(f"The page is in {out}.")
