"""``headwise deploy``: train with clients at sites."""

from __future__ import annotations

import os
from pathlib import Path

import click

from ...settings.experiment import experiment_from, override, read_toml
from ...settings.fields import NonNegative, convert, literal
from ...sites.transport.superlink import check_flower
from ..options import INPUT_FILE, INPUT_FOLDER, OUTPUT_FOLDER, json_option, set_option
from .run import show


@click.command(name="deploy")
@click.argument("config", type=INPUT_FILE)
@click.option("--server", required=True, type=INPUT_FOLDER, help="folder of the server, see headwise server start")
@click.option("--out", required=True, type=OUTPUT_FOLDER, help="folder for the results; an existing run is resumed")
@click.option("--wait", default="600", help="seconds to wait for sites before the first round  [600]")
@set_option("rounds=5")
@json_option
def command(config: Path, server: Path, out: Path, wait: str, changes: tuple[str, ...], as_json: bool) -> None:
    """Train the experiment CONFIG at the sites of a server on this machine."""
    check_flower()
    patience = convert(literal(wait), NonNegative, "wait")
    experiment = experiment_from(override(read_toml(config), changes))
    from ...sites.facts import for_sites
    from ...sites.server.control import submit

    portable = for_sites(experiment)  # report mistakes here, not at the sites
    show(
        submit(
            server.absolute(), portable, Path(os.path.abspath(out)), patience, lambda line: click.echo(line, err=True)
        ),
        as_json,
    )
