"""``headwise run``: train with one method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...app.registry import expect_workers
from ...disk.jsontext import to_json
from ...errors import pluralize
from ...log.metrics import ACCURACY, CLIENT_MEAN, CLIENT_STD, extra_columns, is_majority
from ...runs.query import JOINED_AS
from ..options import INPUT_FILE, INPUT_FOLDER, experiment_of, experiment_options, values_from

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
def command(
    config: Path | None,
    changes: tuple[str, ...],
    out: Path | None,
    data_dir: Path | None,
    tracked: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    profile: bool,
    overwrite: bool,
    origin: Path | None,
    **flags: str | None,
) -> None:
    """Train with one method, configured by the TOML file CONFIG and flags."""
    experiment = (
        experiment_of(config, changes, flags) if origin is None else _experiment_after(origin, config, changes, flags)
    )
    expect_workers(experiment)  # before this process imports torch
    from ...app import launch
    from ...trackers import make_trackers
    from ..display import show_progress

    folder = out or launch.default_folder(experiment)
    others = make_trackers(tracked, folder)
    with show_progress(experiment.method.name, quiet=quiet) as observers:
        run = launch.run(experiment, folder, data_dir=data_dir, observers=[*observers, *others], overwrite=overwrite)
    show(run, as_json)
    if profile:
        from ...runs import profiles

        click.echo(profiles.format_profile(profiles.profile(run.rounds)), err=as_json)
        if rate := profiles.native_rate(run.rounds):
            most = profiles.sgemm_rate()
            share = f"{rate / most:.0%} of this machine's sgemm ({most:.1f})"
            click.echo(f"  native kernels: {rate:.1f} GFLOP/s per core, {share}.", err=as_json)


def _experiment_after(origin: Path, config: Path | None, changes: tuple[str, ...], flags: dict[str, str | None]) -> Any:
    from ...app.continue_from import continue_from, settings_after

    return continue_from(values_from(config, changes, flags, settings_after(origin)))


def show(run: Any, as_json: bool) -> None:
    summary = run.summary()
    if as_json:
        click.echo(to_json({**summary, "ended": run.ended}))
        return
    method, data = (Path(summary[of]).name for of in ("method", "data"))  # of your own file.py, not where it is
    click.echo(f"{method} on {data}, {pluralize(summary['rounds'], 'round')}, {summary['seconds']:.1f} s")
    if summary["metric"] != ACCURACY.name:
        click.echo(f"  metric {run.metric.heading}")
    others = [m for m in extra_columns(run.metric, run.listed_metrics) if m.name != CLIENT_STD.name]
    for moment, s in summary[summary["metric"]].items():
        chosen = f"test {run.metric.label} {s.get('selected', 0):.4f} in round {s.get('selected_round')}"
        selected = f", {chosen}, which was chosen on validation" if "selected" in s else ""
        values = [s.get(m.name) for m in (CLIENT_MEAN, CLIENT_STD)]
        few = s.get(f"{run.metric.name}_clients")
        measured = "" if few is None else f" (measured at {few:g} clients)"
        clients = "" if None in values else ", clients {:.4f} ± {:.4f}".format(*values)
        more = "".join(f", {m.label} {s[m.name]:.4f}" for m in others if s.get(m.name) is not None)
        click.echo(
            f"  {moment:6} last {s['last']:.4f}, best {s['best']:.4f} in round {s['best_round']}{selected}"
            f"{clients}{more}{measured}"
        )
        if by_client := _by_client(run, moment):
            click.echo(f"         {by_client}")
    if "new_clients" in summary:
        click.echo(f"  new    {_new_clients_text(summary['new_clients'])}")
    if summary["floor"] is not None:
        majority = is_majority(run.metric, run.manifest["experiment"]["task"])
        guess = "always each client's most frequent class" if majority else "a model without inputs"
        click.echo(f"  floor  {summary['floor']:.4f} ({guess})")
    click.echo(f"  sent   {summary['bytes_up'] / 1024:,.2f} KB up, {summary['bytes_down'] / 1024:,.2f} KB down")
    if run.privacy:
        click.echo(f"  privacy {run.privacy}")
    if "failed" in summary:
        click.echo(f"  failed {', '.join(f'{count} x {reason}' for reason, count in summary['failed'].items())}")
    end = "" if run.complete else f"; it ended early ({run.ended}), continue with: headwise resume {run.path}"
    click.echo(f"  in     {run.path}{end}")


def _by_client(run: Any, moment: str) -> str:
    """Each client's last accuracy, if there are few and they have names."""
    if not 0 < len(run.names) <= NAMED:
        return ""
    scores = run.last_scores().get(moment, {})
    return ", ".join(f"{run.names[c]} {value:.4f}" for c, value in sorted(scores.items()))


def _new_clients_text(new: dict[str, Any]) -> str:
    """Clients that never trained, after joining and after local training, by epochs on their own samples."""
    scores = {m: ", ".join(f"{a:.4f} after {e}" for e, a in new[m].items()) for m in JOINED_AS}
    count = pluralize(len(new["clients"]), "client")
    return f"{count}, by epochs: joined {scores['joined']}; local training {scores['alone']}, {scores['standalone']}"
