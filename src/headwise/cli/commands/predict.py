"""``headwise predict``: predict samples with an exported model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import click

from ...errors import RunError, pluralize
from ..options import OUTPUT_PATH, quiet_option

MODEL = click.argument("model", type=click.Path(path_type=Path))
DATA = click.argument("data", type=click.Path(path_type=Path))
WRITTEN = "new file to write: .csv, .json or .parquet; for masks .npz, or a folder of PNG files"
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
