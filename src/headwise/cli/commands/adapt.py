"""``headwise adapt``: make a model for a new client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...disk.jsontext import to_json
from ...errors import ConfigError, pluralize
from ..options import INPUT_FOLDER, OUTPUT_FOLDER, json_option, moved_option
from .export import FORMAT, folder_names


@click.command(name="adapt")
@click.argument("run", type=INPUT_FOLDER)
@click.argument("data", type=click.Path(exists=True, path_type=Path))
@click.option("--client", default="", metavar="NAME", help="only this client of a data.toml")
@click.option("--epochs", type=click.IntRange(0, 10_000), default=5, help="epochs on its own samples  [5]")
@click.option("--test", type=click.FloatRange(0, 0.9), default=0.25, help="share of the samples to test on  [0.25]")
@click.option("-o", "--out", type=OUTPUT_FOLDER, metavar="DIR", help="new folder for the model, or for one per client")
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
    """Make a model for a client that was not in RUN, from labelled samples in DATA: a data.toml, table or NPZ file.

    Each client in a data.toml gets its own model. Prints its scores before and after training, on samples that it was
    not trained on.
    """
    from ...exports.adapting import adapt_files
    from ...exports.run_models import Models
    from ...runs.query import Run

    if out and out.exists():
        raise ConfigError(f"{out} exists already: choose another --out.")
    trained = Run(run)
    clients = list(adapt_files(Models(trained, data_dir), data, client, epochs, test))
    names = folder_names([each.client or "client" for each in clients])
    places = [out and (out / name if len(clients) > 1 else out) for name in names]
    for each, place in zip(clients, places, strict=True):
        if place:
            each.model.save(place, format)
    if as_json:
        rows = [{**each._asdict(), "model": place and str(place)} for each, place in zip(clients, places, strict=True)]
        click.echo(to_json({"metric": trained.metric.name, "clients": rows}))
        return
    if len(clients) > 1:
        click.echo(f"{data} has {len(clients)} clients: one model each.")
    for each in clients:
        click.echo(f"{each.client}: " * bool(each.client) + _score_text(each, trained.metric))
    if out:
        click.echo(f"wrote {pluralize(len(clients), 'model')} to {out}")


def _score_text(each: Any, metric: Any) -> str:
    values = [
        f"{metric.form(scores[metric.name])} after {pluralize(int(e), 'epoch')}"
        if metric.name in scores
        else f"undefined after {e}"
        for e, scores in each.scores.items()
    ]
    measured = "not measured"
    if values:
        measured = f"{metric.label} {', '.join(values)}, on {pluralize(each.measured_on, 'other sample')}"
    return f"trained on {pluralize(each.trained_on, 'sample')}; {measured}"
