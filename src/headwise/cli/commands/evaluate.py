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
    from ...exports.quality import judge, measured_on, shown, write_judged

    loaded = load_model(model)
    judged = judge(loaded, data, told=telling(quiet or as_json), client=client)
    if out is not None:
        write_judged(loaded, data, judged, out)
    if as_json:
        click.echo(to_json({**judged.plain(), "classes": loaded.classes}))
        return
    click.echo(measured_on(judged))
    for name, value in shown(judged):
        click.echo(f"{name:20} {value}")
    if out is not None:
        click.echo(f"The page is in {out}.")
