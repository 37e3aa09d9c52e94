"""``headwise data deal``: one folder of data per site, for rehearsals."""

from __future__ import annotations

from pathlib import Path

import click

from .options import data_option, experiment_of, flags, set_option
from .paths import OUTPUT_FOLDER


@click.command(name="deal")
@click.argument("data")
@flags("partition", "split", "clients")
@set_option("data_seed=1")
@click.option("-o", "--out", required=True, type=OUTPUT_FOLDER, help="folder to write; it must be new")
@data_option
def deal(data: str, changes: tuple[str, ...], out: Path, data_dir: Path | None, **given: str | None) -> None:
    """Divide DATA (a data set or a data.toml) among clients, and write a folder with a data.toml for each."""
    experiment = experiment_of(None, changes, {**given, "data": data})
    from ..app.launch import data_folder
    from ..app.prepare import divided
    from ..data.own.dealing import deal as write
    from ..disk.files import failing_clearly

    found = divided(experiment, data_folder(data_dir))
    usual = found.dataset.model or experiment.data.make("data").default_model
    with failing_clearly(out):
        homes = write(found, usual, out)
    for client, home in enumerate(homes):
        click.echo(f"headwise site init {home / 'site'} --client {client} --data {home / 'data.toml'}")
    click.echo(f"headwise deploy {out / 'experiment.toml'} --server SERVER --out OUT")
