"""``headwise data deal``: one folder of data per site, for rehearsals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .options import FLAGS, data_option, experiment_of
from .paths import OUTPUT_FOLDER


def _flags(f: Any) -> Any:
    for name in ("clients", "split", "partition"):
        path, text = FLAGS[name]
        f = click.option(f"--{name}", help=f"{text}  [{path}]")(f)
    return f


@click.command(name="deal")
@click.argument("data")
@_flags
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="any setting, for instance data_seed=1")
@click.option("-o", "--out", required=True, type=OUTPUT_FOLDER, help="folder to write; it must be new")
@data_option
def deal(data: str, changes: tuple[str, ...], out: Path, data_dir: Path | None, **flags: str | None) -> None:
    """Divide DATA (a data set or a data.toml) among clients, and write a folder with a data.toml for each."""
    experiment = experiment_of(None, changes, {**flags, "data": data})
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
