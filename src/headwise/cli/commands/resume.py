"""``headwise resume``: continue a run that was interrupted."""

from __future__ import annotations

from pathlib import Path

import click

from ..options import INPUT_FOLDER, json_option, moved_option, quiet_option, track_option
from .run import show


@click.command(name="resume")
@click.argument("run", type=INPUT_FOLDER)
@click.option("--verify", is_flag=True, help="read all files of your own data to see whether one has changed")
@click.option(
    "--with-new-code", is_flag=True, help="continue with your own files as they are now, though they have changed"
)
@moved_option
@track_option
@json_option
@quiet_option
def command(
    run: Path,
    verify: bool,
    with_new_code: bool,
    data_dir: Path | None,
    tracked: tuple[str, ...],
    as_json: bool,
    quiet: bool,
) -> None:
    """Continue the run in folder RUN; the result has the same bits as without the interruption."""
    from ...app import launch
    from ...trackers import make_trackers
    from ..display import show_progress

    others = make_trackers(tracked, run)
    happened: set[type] = set()
    with show_progress(run.name, quiet=quiet) as observers:
        everyone = [*observers, *others, lambda event: happened.add(type(event))]
        ended = launch.resume(run, data_dir=data_dir, observers=everyone, verify=verify, with_new_code=with_new_code)
    if not happened and not quiet:
        click.echo(f"{run} has finished: no round was left to run. This is its result.", err=True)
    show(ended, as_json)
