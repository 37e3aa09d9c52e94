"""``headwise site adapt``: a model for a site that came after the last round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..disk.files import check_new_folder
from ..disk.jsontext import to_json
from ..errors import counted
from ..sites.extras import check_flower
from .commands.export import FORMAT, LICENCE
from .options import json_option
from .paths import INPUT_FOLDER, OUTPUT_FOLDER


@click.command(name="adapt")
@click.argument("folder", type=INPUT_FOLDER)
@click.argument("offer", type=INPUT_FOLDER)
@click.option("--client", type=click.IntRange(0, 10**9), help="number of the client in site.toml, if it has several")
@click.option("--epochs", type=click.IntRange(0, 10_000), default=5, help="epochs on its training samples  [5]")
@click.option("--fingerprint", default="", help="refuse an offer with another one; its beginning is enough")
@click.option("-o", "--out", required=True, type=OUTPUT_FOLDER, metavar="DIR", help="folder to write; it must be new")
@FORMAT
@LICENCE
@json_option
def adapt(
    folder: Path,
    offer: Path,
    client: int | None,
    epochs: int,
    fingerprint: str,
    out: Path,
    format: Any,
    licence: str,
    as_json: bool,
) -> None:
    """Give a client of the site in FOLDER a model, after the last round, from the OFFER that the server handed over.

    The server writes it with headwise export RUN --newcomer. Nothing is sent, and site.toml decides as in a round.
    """
    check_flower()
    check_new_folder(out)
    from ..exports.card import check_format
    from ..sites.site import adapting

    check_format(format)
    found = adapting.adapt(folder / "site.toml", offer, client, epochs, licence, fingerprint)
    found.model.save(out, format)
    if as_json:
        told = {"metric": found.metric.name, "trained_on": found.trained_on, "scores": found.scores}
        click.echo(to_json({**told, "model": str(out), "fingerprint": found.fingerprint}))
        return
    for e, score in found.scores.items():
        if (value := score.get(found.metric.name)) is not None:
            measured = f"{found.metric.label} {found.metric.form(value)} after {counted(e, 'epoch')}"
            click.echo(f"{measured}, on {counted(int(score['n']), 'test sample')}")
    click.echo(
        f"wrote {out}, trained on {counted(found.trained_on, 'sample')}; the offer's fingerprint is {found.fingerprint}"
    )
