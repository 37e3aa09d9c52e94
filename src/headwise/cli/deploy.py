"""``headwise deploy``: train with clients at sites."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from ..config import experiment_from, override, read_toml
from .run import show


@click.command(name="deploy")
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--superlink", required=True, help="the SuperLink, as Flower's config.toml names it")
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="folder for the results; to go on, the same"
)
@click.option("--data-dir", type=click.Path(path_type=Path), help="where public data sets are  [HEADWISE_DATA]")
@click.option("--deadline", default=600.0, show_default=True, help="seconds that sites have for an answer")
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="any setting, for instance rounds=5")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object on stdout and nothing else there")
def command(
    config: Path,
    superlink: str,
    out: Path,
    data_dir: Path | None,
    deadline: float,
    changes: tuple[str, ...],
    as_json: bool,
) -> None:
    """Train the experiment CONFIG with the sites of a SuperLink on this machine."""
    experiment = experiment_from(override(read_toml(config), changes))
    experiment = dataclasses.replace(experiment, engine=dataclasses.replace(experiment.engine, kind="flower"))
    from .. import launch
    from ..flower.submit import submit
    from ..plans import make_plan

    folder = launch.data_folder(data_dir)
    make_plan(experiment, folder)  # what is wrong with it is said here, not at the sites
    show(submit(experiment, out, folder, superlink, deadline), as_json)
