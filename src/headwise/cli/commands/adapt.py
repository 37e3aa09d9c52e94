"""``headwise adapt``: a model for a client that was not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from ...disk.jsontext import to_json
from ...errors import ConfigError, DataError
from ..options import json_option, moved_option
from ..paths import INPUT_FOLDER, OUTPUT_FOLDER
from .export import FORMAT


@click.command(name="adapt")
@click.argument("run", type=INPUT_FOLDER)
@click.argument("data", type=click.Path(exists=True, path_type=Path))
@click.option("--client", default="", metavar="NAME", help="whose samples to take, if the data.toml has several")
@click.option("--epochs", type=click.IntRange(0, 10_000), default=5, help="epochs on its own samples  [5]")
@click.option(
    "--test",
    type=click.FloatRange(0, 0.9),
    default=0.25,
    help="share of the samples to measure with  [0.25]",
)
@click.option("-o", "--out", type=OUTPUT_FOLDER, metavar="DIR", help="folder for the model; it must be new")
@FORMAT
@moved_option
@json_option
def command(
    run: Path,
    data: Path,
    client: str,
    epochs: int,
    test: float,
    out: Path | None,
    format: Any,
    data_dir: Path | None,
    as_json: bool,
) -> None:
    """Give a client that was not in RUN a model, from labelled samples in DATA: a data.toml, a table or an NPZ file.

    Says how good it is before and after its epochs, on the samples that are not trained on.
    """
    from ...exports.personal import Models
    from ...runs.query import Run

    if out and out.exists():
        raise ConfigError(f"{out} exists already: choose another --out.")
    models = Models(Run(run), data_dir)
    x, y = _read(models, data, client)
    order = np.random.default_rng(models.plan.experiment.seed).permutation(len(y))
    held = order[: round(test * len(y))]
    rest = np.sort(order[len(held) :])
    found: dict[int, float] = {}
    for e in sorted({0, epochs}):
        model = models.adapted(x[rest], y[rest], e)
        found[e] = float((model.predict(x[held]) == y[held]).mean()) if len(held) else 0.0
        if e == epochs and out:
            model.save(out, format)
    if as_json:
        said = {str(e): a for e, a in found.items()} if len(held) else None
        click.echo(
            to_json({"trained_on": len(rest), "measured_on": len(held), "accuracy": said, "out": out and str(out)})
        )
        return
    for e, accuracy in found.items() if len(held) else ():
        click.echo(f"accuracy {accuracy:.4f} after {e} epochs on {len(rest)} samples, of {len(held)} others")
    if out:
        click.echo(f"wrote {out}")


def _read(models: Any, path: Path, client: str) -> tuple[Any, Any]:
    """The samples as the run takes them before preprocessing, and the names of their classes."""
    from ...exports.samples import read

    reader = models.of(models.plan.clients[0])
    batches = list(read(path, reader, labelled=True, client=client))
    if not batches:
        raise DataError(f"{path} has no samples.")
    x = np.concatenate([reader.inputs.encode(batch.raw) for batch in batches])
    names = np.array(reader.classes, dtype=object)
    return x, names[np.concatenate([batch.labels for batch in batches if batch.labels is not None])]
