"""``headwise resume``: go on with a run that was interrupted."""

from __future__ import annotations

from pathlib import Path

import click

from ..options import track_option
from ..paths import INPUT_FOLDER
from .run import show


@click.command(name="resume")
@click.argument("run", type=INPUT_FOLDER)
@click.option("--data-dir", type=INPUT_FOLDER, help="where public data sets are, if they moved")
@track_option
@click.option("--json", "as_json", is_flag=True, help="print one JSON object on stdout and nothing else there")
@click.option("--quiet", is_flag=True, help="show no progress")
def command(run: Path, data_dir: Path | None, tracked: tuple[str, ...], as_json: bool, quiet: bool) -> None:
    """Go on with RUN, the folder of a run; it ends with the same bits as one that was never interrupted."""
    from ...app import launch
    from ...trackers import trackers
    from ..display import watching

    others = trackers(tracked, run)
    with watching(run.name, quiet=quiet) as observers:
        show(launch.resume(run, data_dir=data_dir, observers=[*observers, *others]), as_json)
