"""``headwise run``, ``resume`` and ``retrain``: train, continue a run, repeat it without some clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...app.registry import expect_workers
from ...disk.jsontext import to_json
from ...errors import pluralize
from ...log.metrics import ACCURACY, CLIENT_MEAN, CLIENT_STD, extra_columns, is_majority
from ...runs.query import JOINED_AS
from ..options import (
    INPUT_FILE,
    INPUT_FOLDER,
    OUTPUT_FOLDER,
    experiment_options,
    json_option,
    moved_option,
    quiet_option,
    read_options,
    track_option,
    values_from,
)
from ..output import table_text

NAMED = 10
"""up to this many named clients are listed one by one"""


@click.command(name="run")
@click.argument("config", required=False, type=INPUT_FILE)
@experiment_options()
@click.option(
    "--from",
    "origin",
    type=INPUT_FOLDER,
    metavar="RUN",
    help="continue from a finished run, with its settings unless you change them",
)
@click.option(
    "--overwrite", is_flag=True, help="replace the run in --out; a folder that is not a run is never replaced"
)
@click.option("--profile", is_flag=True, help="show where the time went")
def command(config: Path | None, origin: Path | None, overwrite: bool, profile: bool, **options: Any) -> None:
    """Train with one method, configured by the TOML file CONFIG and flags."""
    given = read_options(options)
    if origin is None:
        experiment = given.experiment(config)
    else:
        from ...app.continue_from import continue_from, settings_after

        experiment = continue_from(values_from(config, given.changes, given.flags, settings_after(origin)))
    expect_workers(experiment)  # before this process imports torch
    from ...app import launch
    from ...trackers import make_trackers

    folder = given.out or launch.default_folder(experiment)
    trackers = make_trackers(given.tracked, folder)
    with given.watch(experiment.method.name) as shown:
        run = launch.run(
            experiment, folder, data_dir=given.data_dir, observers=[*shown, *trackers], overwrite=overwrite
        )
    show(run, given.as_json)
    if profile:
        _show_profile(run.rounds, to_stderr=given.as_json)


def _show_profile(rounds: Any, to_stderr: bool) -> None:
    from ...runs import profiles

    click.echo(profiles.format_profile(profiles.profile(rounds)), err=to_stderr)
    if rate := profiles.native_rate(rounds):
        most = profiles.sgemm_rate()
        share = f"{rate / most:.0%} of this machine's sgemm ({most:.1f})"
        click.echo(f"  native kernels: {rate:.1f} GFLOP/s per core, {share}.", err=to_stderr)


@click.command(name="resume")
@click.argument("run", type=INPUT_FOLDER)
@click.option("--verify", is_flag=True, help="read all files of your own data to see whether one has changed")
@click.option(
    "--with-new-code", is_flag=True, help="continue with your own files as they are now, though they have changed"
)
@moved_option
@track_option()
@json_option
@quiet_option
def resume(
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

    happened: set[type] = set()
    trackers = make_trackers(tracked, run)
    with show_progress(run.name, quiet=quiet) as shown:
        observers = [*shown, *trackers, lambda event: happened.add(type(event))]
        ended = launch.resume(run, data_dir=data_dir, observers=observers, verify=verify, with_new_code=with_new_code)
    if not happened and not quiet:
        click.echo(f"{run} has finished: no round was left to run. This is its result.", err=True)
    show(ended, as_json)


@click.command(name="retrain")
@click.argument("run", type=INPUT_FOLDER)
@click.option("--without", multiple=True, required=True, metavar="NAME", help="client to forget; repeatable")
@click.option("--out", type=OUTPUT_FOLDER, help="folder for the results; it must be new")
@moved_option
@json_option
@quiet_option
def retrain(
    run: Path, without: tuple[str, ...], out: Path | None, data_dir: Path | None, as_json: bool, quiet: bool
) -> None:
    """Repeat RUN exactly as if these clients had never taken part, and show what that changes for the others."""
    from ...app import retrain as retraining
    from ...report.page import tabulate_forgotten
    from ...runs.query import Run
    from ..display import show_progress

    with show_progress(run.name, quiet=quiet) as shown:
        retrained = retraining.retrain(run, without, out, data_dir=data_dir, observers=shown)
    show(retrained, as_json)
    if not as_json:
        click.echo(table_text(*tabulate_forgotten(Run(run), retrained), numbers_from=1, width=100, wrapped=True))
        click.echo(f"on a page: {retrained.path / retraining.PAGE}")


def show(run: Any, as_json: bool) -> None:
    """Print a run's scores at each moment, and what it cost."""
    summary = run.summary()
    if as_json:
        click.echo(to_json({**summary, "ended": run.ended}))
        return
    method = Path(summary["method"]).name  # of your own file.py, not where it is
    data = Path(summary["data"]).name
    click.echo(f"{method} on {data}, {pluralize(summary['rounds'], 'round')}, {summary['seconds']:.1f} s")
    if summary["metric"] != ACCURACY.name:
        click.echo(f"  metric {run.metric.heading}")
    for moment, scores in summary[summary["metric"]].items():
        click.echo(f"  {moment:6} {_score_text(run, scores)}")
        if 0 < len(run.names) <= NAMED and (by_client := run.last_scores().get(moment)):
            listed = ", ".join(f"{run.names[c]} {value:.4f}" for c, value in sorted(by_client.items()))
            click.echo(f"         {listed}")
    if "new_clients" in summary:
        click.echo(f"  new    {_new_clients_text(summary['new_clients'])}")
    if summary["floor"] is not None:
        majority = is_majority(run.metric, run.manifest["experiment"]["task"])
        guess = "always each client's most frequent class" if majority else "each client's best constant prediction"
        click.echo(f"  floor  {summary['floor']:.4f} ({guess})")
    click.echo(f"  data   {pluralize(summary['clients'], 'client')}, {_partition_text(run)}")
    click.echo(f"  sent   {summary['bytes_up'] / 1024:,.2f} KB up, {summary['bytes_down'] / 1024:,.2f} KB down")
    if run.privacy:
        click.echo(f"  privacy {run.privacy}")
    if "failed" in summary:
        click.echo(f"  failed {', '.join(f'{count} x {reason}' for reason, count in summary['failed'].items())}")
    end = "" if run.complete else f"; it ended early ({run.ended}), continue with: headwise resume {run.path}"
    click.echo(f"  in     {run.path}{end}")


def _partition_text(run: Any) -> str:
    """Its name and its numbers, such as dirichlet:0.1."""
    values = run.manifest["experiment"]["partition"].values()
    return ":".join(str(v) for v in values if v is not None and not isinstance(v, bool))


def _score_text(run: Any, scores: dict[str, Any]) -> str:
    """The last and the best score, the one chosen on validation samples, and what else was measured."""
    parts = [f"last {scores['last']:.4f}", f"best {scores['best']:.4f} in round {scores['best_round']}"]
    if "selected" in scores:
        selected = f"{scores['selected']:.4f} in round {scores['selected_round']}"
        parts.append(f"test {run.metric.label} {selected}, which was chosen on validation")
    mean = scores.get(CLIENT_MEAN.name)
    std = scores.get(CLIENT_STD.name)
    if mean is not None and std is not None:
        parts.append(f"clients {mean:.4f} ± {std:.4f}")
    for metric in extra_columns(run.metric, run.listed_metrics):
        if metric.name != CLIENT_STD.name and scores.get(metric.name) is not None:
            parts.append(f"{metric.label} {scores[metric.name]:.4f}")
    few = scores.get(f"{run.metric.name}_clients")
    return ", ".join(parts) + ("" if few is None else f" (measured at {few:g} clients)")


def _new_clients_text(new: dict[str, Any]) -> str:
    """Clients that never trained, after joining and after local training, by epochs on their own samples."""
    scores = {m: ", ".join(f"{a:.4f} after {e}" for e, a in new[m].items()) for m in JOINED_AS}
    count = pluralize(len(new["clients"]), "client")
    return f"{count}, by epochs: joined {scores['joined']}; local training {scores['alone']}, {scores['standalone']}"
