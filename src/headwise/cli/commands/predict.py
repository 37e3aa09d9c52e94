"""``headwise predict`` and ``evaluate``: use an exported model, and measure it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import click

from ...disk.jsontext import to_json
from ...errors import RunError, pluralize
from ..options import OUTPUT_FILE, OUTPUT_PATH, json_option, quiet_option

MODEL = click.argument("model", type=click.Path(path_type=Path))
DATA = click.argument("data", type=click.Path(path_type=Path))
WRITTEN = "new file to write: .csv, .json or .parquet; for masks .npz, or a folder of PNG files"
DIVIDED_OTHERWISE = (
    "Warning: this data, or its split, is not that of the model's run: some samples may be training samples."
)
CLIENT = click.option("--client", default="", metavar="NAME", help="only this client's samples of a data.toml")


def print_progress(quiet: bool) -> Callable[[int], None]:
    """Shows how many samples are done, in a terminal."""
    shown = not quiet and sys.stderr.isatty()
    return lambda n: click.echo(f"\r{n:,} samples", err=True, nl=False) if shown else None


@click.command(name="predict")
@MODEL
@DATA
@click.option("-o", "--out", required=True, type=OUTPUT_PATH, help=WRITTEN)
@CLIENT
@quiet_option
def command(model: Path, data: Path, out: Path, client: str, quiet: bool) -> None:
    """Predict the samples in DATA with the exported MODEL.

    DATA is a table with the columns that the model was trained on, an NPZ file with x, an image or a folder of images,
    or a data.toml.
    """
    from ...exports.loading import load_model
    from ...exports.predicting import predict_file

    if out.is_file():
        raise RunError(f"{out} exists already: choose another -o, or remove it.")
    n = predict_file(load_model(model), data, out, on_progress=print_progress(quiet), client=client)
    click.echo(
        f"\nwrote {pluralize(n, 'prediction')} to {out}".lstrip("\n" if quiet or not sys.stderr.isatty() else "")
    )


@click.command(name="evaluate")
@MODEL
@DATA
@click.option(
    "-o", "--out", type=OUTPUT_FILE, help="page to write, with pictures and a table of each class, label or quantity"
)
@CLIENT
@json_option
@quiet_option
def evaluate(model: Path, data: Path, out: Path | None, client: str, as_json: bool, quiet: bool) -> None:
    """Measure the exported MODEL on DATA with the run's metrics. DATA is as for predict, but includes the target.

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
        click.echo(DIVIDED_OTHERWISE, err=True)
    if out is not None:
        write_page(loaded, data, quality, out)
    if as_json:
        click.echo(to_json({**quality.to_plain(), "classes": loaded.classes, "held_out": held_out is not None}))
        return
    click.echo(f"{'Test samples of the run: ' if held_out else ''}{count_samples(quality)}")
    for name, value in format_scores(quality):
        click.echo(f"{name:20} {value}")
    for sentence in compare_with_floor(loaded, quality):
        click.echo(sentence)
    if out is not None:
        click.echo(f"The page is in {out}.")
