"""Runs an experiment: prepares it, chooses an executor, drives the rounds and stores the results."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ..app import registry
from ..contract.method import record_types
from ..disk.files import explain_write_errors, lock_folder
from ..disk.jsontext import to_json
from ..disk.paths import input_folder, path_of
from ..engine.client.state import States
from ..engine.driver import drive
from ..engine.estimate import is_long
from ..engine.events import Observer
from ..engine.executors.base import Executor, Setup
from ..engine.executors.faulty import Faulty
from ..engine.host import cores, keep_freed_memory, spare_collections, stop_after_round, use_one_thread
from ..engine.plan import Plan
from ..errors import ConfigError, RunError
from ..privacy.accountant import account
from ..runs.manifest import INPUTS, describe, describe_move, read_manifest, with_relative_paths
from ..runs.query import NEW_CLIENTS, Run
from ..runs.store import EARLY, LINES, Diagnostics, RunStore, mend_partition, new_run, refuse_if_taken
from ..settings.choices import OWN, Choice
from ..settings.experiment import Experiment, experiment_from
from ..settings.fields import dump
from .checks import check_augment, check_loss, check_weights
from .code import add_code, check_unchanged, collect_code, is_changed, store_code
from .continue_from import start_states
from .inputs import (
    check_processes,
    check_trace,
    new_inputs,
    own_objects,
    remember,
    store_inputs,
    with_functions,
    with_networks,
)
from .prepare import Prepared, plan_from_json, prepare
from .registry import expect_workers

FILES = {
    *EARLY,
    *LINES,
    *("manifest.json", "result.json", "checkpoint", NEW_CLIENTS, "report.html", "without.html"),
    *("mlflow.json", "tensorboard", "wandb"),
}
"""files that a run's folder may hold; a folder with others is not overwritten"""


class Backend(NamedTuple):
    """Where a run's data and clients are."""

    make: Callable[[Experiment], Prepared]
    executor: Callable[[Experiment, Plan, States, Path], Executor]
    """called with the states to start from and the run's folder"""


def make_local_backend(data_dir: Path) -> Backend:
    """This machine, or a simulation that it starts."""
    return Backend(partial(prepare, data_dir=data_dir), partial(_make_executor, data_dir=data_dir))


def run(
    experiment: Experiment,
    out: str | Path | None = None,
    *,
    data_dir: str | Path | None = None,
    observers: Iterable[Observer] = (),
    backend: Backend | None = None,
    overwrite: bool = False,
) -> Run:
    """Train and return the run.

    Args:
        experiment: everything that the run depends on.
        out: the run's folder, which must be new; if it is not given, a folder is created under ``runs/``.
        data_dir: the folder of public data sets; if it is not given, HEADWISE_DATA or a cache in your home.
        observers: functions that are called with each event of the run.
        backend: where data and clients are; if it is not given, this machine.
        overwrite: replace the run in `out`, once this one has started. A folder that is not a run is never replaced.

    Returns:
        The finished run, or an interrupted one that `resume` continues.

    >>> run(Experiment(method="fedrep", data="digits", rounds=2), "runs/first").complete
    True
    """
    if experiment.engine.kind == "flower" and backend is None:
        raise ConfigError("engine.kind is 'flower', which only headwise deploy can run.")
    expect_workers(experiment)
    data_dir = data_folder(data_dir)
    backend = backend or make_local_backend(data_dir)
    folder = Path(out) if out else default_folder(experiment)
    with set_aside(folder, overwrite), new_inputs(folder) as home:
        experiment, plan, summary, histograms = backend.make(store_inputs(experiment, home))
        _ = plan.trace  # a bad file is refused before there is a run
        check_augment(plan)
        check_weights(plan)
        check_loss(plan)
        spent = {"privacy": costs} if (costs := account(plan)) else {}
        manifest = (
            describe(with_relative_paths(experiment.to_plain(), folder), dump(summary), data_dir.absolute()) | spent
        )
        code = collect_code(experiment)
        manifest["code"] = [{"round": 0, **code.to_plain()}]
        store_code(code, folder)
        start = start_states(plan, histograms["classes"]) if experiment.origin.run else None
        with new_run(folder, manifest, histograms):
            del histograms  # a gigabyte with a million clients
            if start:
                with closing(RunStore(folder, record_types(type(plan.method)))) as store:
                    store.begin(*start)
            return _drive(experiment, plan, folder, observers, backend)


def resume(
    folder: str | Path,
    *,
    data_dir: str | Path | None = None,
    observers: Iterable[Observer] = (),
    backend: Backend | None = None,
    model: Any = None,
    augment: Any = None,
    verify: bool = False,
    with_new_code: bool = False,
) -> Run:
    """Continue a run that was interrupted, killed or out of budget; the result has the same bits as without that.

    Args:
        folder: the run's folder.
        data_dir: the folder of public data sets, if it moved.
        observers: functions that are called with each event of the run.
        backend: where data and clients are; if it is not given, this machine.
        model: the network again, if it was defined in a notebook or script.
        augment: the augmentation function again, if it was defined there.
        verify: read all files of the data to see whether one has changed, not only those with another size or time.
        with_new_code: continue even though your own method, network, augmentation or metric has changed; the manifest
            records the round.

    Returns:
        The run; a finished one is returned unchanged.

    Raises:
        RunError: the data or your own code has changed; a note of the error shows the difference.

    >>> resume("runs/first").complete
    True
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    if _is_complete(run := Run(folder)):
        run.check()
        for given, with_objects in ((model, with_networks), (augment, with_functions)):
            if given is not None:
                remember(with_objects(experiment_from(manifest["experiment"]), folder, given), folder)
        return run
    before = _read_resumable(folder, manifest, backend)
    backend = backend or make_local_backend(data_folder(data_dir or manifest["data_dir"]))
    expect_workers(before)
    check_trace(before)
    began = with_functions(with_networks(before, folder, model), folder, augment)
    if verify and began.data.name == OWN:
        registry.make("data", began.data).check_content()
    code = collect_code(began)
    if not with_new_code:
        check_unchanged(folder, manifest, code, "resume it --with-new-code, or start a new run")
    experiment, plan, summary, histograms = backend.make(began)
    then = manifest["partition"]["hash"]
    if summary.hash != then:
        raise RunError(f"{folder} was run on partition {then[:12]}, but the data now gives {summary.hash[:12]}.")
    with lock_folder(folder):
        mend_partition(folder, histograms)
        if with_new_code and is_changed(folder, manifest, code):
            add_code(folder, code, len(run.rounds))
        del histograms
        return _drive(experiment, plan, folder, observers, backend)


def _read_resumable(folder: Path, manifest: dict[str, Any], backend: Backend | None) -> Experiment:
    """The experiment of a run that can continue here; warns if the machine differs."""
    experiment = experiment_from(manifest["experiment"])
    if backend is None and experiment.engine.kind == "flower":
        raise RunError(f"{folder} has its clients at sites: continue it with headwise deploy.")
    if where := describe_move(manifest):
        logging.getLogger("headwise").warning(
            "%s began on %s: it continues, but its last bits may differ from a run on one machine.",
            folder,
            where,
        )
    return experiment


def run_or_resume(
    experiment: Experiment,
    out: Path,
    *,
    data_dir: str | Path | None = None,
    observers: Iterable[Observer] = (),
    backend: Backend | None = None,
) -> Run:
    """Run in `out`, or continue there if it holds the same experiment; a complete run is not repeated."""
    if not (out / "manifest.json").exists():
        return run(experiment, out, data_dir=data_dir, observers=observers, backend=backend)
    old = Run(out)
    data = experiment_from(old.manifest["experiment"]).data
    if experiment.data.name == OWN and _place_of(data) != _place_of(experiment.data):
        # before `store_inputs`, whose list of files would be compared with those of the earlier data
        raise RunError(f"{out} holds a run on other data, {_place_of(data)}: choose another --out.")
    experiment = store_inputs(experiment, out / INPUTS)
    now = (backend or make_local_backend(data_folder(data_dir))).make(experiment).experiment
    before = registry.resolve_all(experiment_from(old.manifest["experiment"]))
    places = {name: getattr(now.engine, name) for name in ("workers", "device", "kind", "flower")}
    elsewhere = dataclasses.replace(before.engine, **places)
    if dataclasses.replace(before, engine=elsewhere).to_plain() != now.to_plain():  # it may continue on another engine
        raise RunError(f"{out} holds another experiment: choose another folder.")
    check_unchanged(out, old.manifest, collect_code(now), "choose another folder")
    if _is_complete(old):
        return old
    return resume(out, data_dir=data_dir, observers=observers, backend=backend, **own_objects(now))


def _place_of(data: Choice) -> str:
    """The name of public data, the data.toml of one's own."""
    path = data.options.get("path")
    return str(Path(path).absolute()) if path else data.name


class InterruptedRunError(RunError):
    """The user, or a limit of the run's own, ended it early; it continues where it stopped."""


def run_to_end(experiment: Experiment, out: Path, again: str, **options: Any) -> Run:
    """`run_or_resume`; raises if the run ended early: `again` says how to continue."""
    run = run_or_resume(experiment, out, **options)
    if not run.complete:
        raise InterruptedRunError(f"{run.path} ended early ({run.ended}): {again} to continue.")
    return run


@contextmanager
def set_aside(folder: Path, overwrite: bool) -> Iterator[None]:
    """Move the run in this folder aside: it is deleted once a new one has started there, or else moved back."""
    if not overwrite or not folder.exists():
        refuse_if_taken(folder)
        yield
        return
    names = [p.name for p in folder.iterdir()] if folder.is_dir() and not folder.is_symlink() else [folder.name]
    if strange := [name for name in names if name not in FILES]:
        raise RunError(f"{folder} can't be overwritten: {strange[0]} in it is not a file of a run.")
    read_manifest(folder)
    aside = folder.with_name(f".{folder.name}.old")
    if aside.exists():  # of a process that was killed after it had replaced the run
        shutil.rmtree(aside)
    with explain_write_errors(folder), lock_folder(folder):  # not while another process writes there
        folder.rename(aside)
    try:
        yield
    finally:
        if (folder / "manifest.json").exists():
            shutil.rmtree(aside)
        else:
            aside.rename(folder)


def _is_complete(run: Run) -> bool:
    """Whether no round is left; a damaged file counts as incomplete, and is written again when the run continues."""
    try:
        return run.complete
    except RunError:
        return False


def _drive(experiment: Experiment, plan: Plan, folder: Path, observers: Iterable[Observer], backend: Backend) -> Run:
    keep_freed_memory()
    remember(experiment, folder)
    opened = closing(RunStore(folder, record_types(type(plan.method)), keep_best=plan.keeps("best")))
    with use_one_thread(), stop_after_round() as interrupted, opened as store:
        start = store.load()
        executor = backend.executor(experiment, plan, start.states, folder)
        executor = Faulty(executor, plan) if plan.experiment.faults.inject.shares else executor
        with closing(executor), spare_collections():
            everyone = (Diagnostics(folder, plan.method), store, *observers)
            drive(plan, executor, everyone, start=start.progress, interrupted=interrupted)
    return Run(folder)


def _make_executor(experiment: Experiment, plan: Plan, states: States, folder: Path, *, data_dir: Path) -> Executor:
    engine = experiment.engine
    text = to_json(experiment.to_plain())
    here = engine.kind == "local"
    count = engine.workers.count or (1 if here and not is_long(plan) else cores())
    local = "threads" if engine.workers.kind == "threads" else "serial" if count == 1 else "pool"
    local = check_processes(plan, local if here else engine.kind, engine.workers.kind)
    setup = Setup(plan, states, engine, count, text, partial(plan_from_json, text), data_dir, folder)
    return registry.find_executor(local)(setup)


def data_folder(given: str | Path | None) -> Path:
    """The folder of public data sets: `given`, HEADWISE_DATA, or a cache in the user's home (or here, without one)."""
    if chosen := given or os.environ.get("HEADWISE_DATA"):
        return input_folder(chosen, "HEADWISE_DATA" if given is None else "data_dir")
    home = os.path.expanduser("~")  # stays "~" where a user has no home, as in some containers
    return path_of(Path("" if home == "~" else home) / ".cache" / "headwise", "HOME")


def default_folder(experiment: Experiment) -> Path:
    return free_folder(f"{Path(experiment.method.name).stem}-{experiment.data.name}-s{experiment.seed}")


def free_folder(name: str) -> Path:
    """`runs/name`, with a number appended if that exists."""
    root = Path("runs")
    name = re.sub(r"[^\w.-]", "-", name)[:100]
    taken = {p.name for p in root.glob(f"{name}*")}
    return root / next(n for k in range(1, 10**6) if (n := name if k == 1 else f"{name}-{k}") not in taken)
