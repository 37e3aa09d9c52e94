"""From an experiment to a finished run: build everything, choose where clients live, drive, and store what happens."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from .accounting import account, rehearsed
from .averaging import Averaging
from .config import Choice, Experiment, experiment_from
from .data.dataset import Dataset, Source
from .data.federated import Clients, FederatedData
from .data.splits import divide_all, parse
from .engine.devices import check_device
from .engine.driver import drive
from .engine.estimate import is_long
from .engine.events import Observer
from .engine.executors.base import Executor
from .engine.executors.faulty import Faulty
from .engine.executors.pool import Pool
from .engine.executors.serial import Serial
from .engine.executors.threads import Threads
from .engine.interrupts import politely_interrupted
from .engine.plan import Plan
from .engine.process import cores, keep_freed_memory, one_thread
from .engine.state import States
from .errors import ConfigError, RunError
from .method import Method, record_types
from .models.base import Model, Task
from .models.split import SplitModel, channels_last, laid_out
from .runs.diagnostics import Diagnostics
from .runs.files import only_writer
from .runs.manifest import FORMAT, describe, read_manifest
from .runs.query import Run
from .runs.store import RunStore, create
from .seeds import seed_of
from .settings import dump


def run(
    experiment: Experiment,
    out: str | Path | None = None,
    *,
    data_dir: str | Path | None = None,
    observers: Iterable[Observer] = (),
) -> Run:
    """Train, and return the run; its folder `out` is made under ``runs/`` if none is given."""
    data_dir = data_folder(data_dir)
    experiment, plan, data = make_plan(experiment, data_dir)
    folder = Path(out) if out else usual_folder(experiment)
    spent = account(experiment, plan.method, plan)
    manifest = describe(experiment.plain(), dump(data.summary), data_dir.absolute()) | (
        {"privacy": spent} if spent else {}
    )
    create(folder, manifest, {**data.histograms(), "classes": list(data.dataset.classes)})
    return _go(experiment, plan, data_dir, folder, observers)


def resume(folder: str | Path, *, data_dir: str | Path | None = None, observers: Iterable[Observer] = ()) -> Run:
    """Go on with a run that was interrupted, killed or ran out of its time; a finished one is left as it is."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    if (found := Run(folder)).complete:
        return found
    if manifest["format"] < FORMAT:
        raise RunError(
            f"{folder} was begun by an older Headwise ({manifest['headwise']}): it can be read, not resumed."
        )
    data_dir = data_folder(data_dir or manifest["data_dir"])
    experiment, plan, data = make_plan(experiment_from(manifest["experiment"]), data_dir)
    now, wanted = data.summary.hash, manifest["partition"]["hash"]
    if now != wanted:
        raise RunError(f"{folder} was run on partition {wanted[:12]}, but the data now gives {now[:12]}: it differs.")
    return _go(experiment, plan, data_dir, folder, observers)


def run_or_resume(
    experiment: Experiment,
    out: Path,
    *,
    data_dir: str | Path | None = None,
    observers: Iterable[Observer] = (),
) -> Run:
    """Run in this folder, or go on there if it holds the same experiment; what is complete is not run again."""
    if not (out / "manifest.json").exists():
        return run(experiment, out, data_dir=data_dir, observers=observers)
    found = Run(out)
    before, now = experiment_from(found.manifest["experiment"]), make_plan(experiment, data_folder(data_dir))[0]
    elsewhere = dataclasses.replace(before.engine, workers=now.engine.workers, device=now.engine.device)
    if dataclasses.replace(before, engine=elsewhere) != now:  # where it runs changes no result
        raise RunError(f"{out} holds another experiment: choose another --out.")
    return found if found.complete else resume(out, data_dir=data_dir, observers=observers)


def _go(experiment: Experiment, plan: Plan, data_dir: Path, folder: Path, observers: Iterable[Observer]) -> Run:
    keep_freed_memory()
    opened = closing(RunStore(folder, record_types(type(plan.method))))
    with only_writer(folder), one_thread(), politely_interrupted() as interrupted, opened as store:
        start = store.load()
        with closing(_executor(experiment, plan, start.states)) as executor:
            watching = (Diagnostics(folder, plan.method), store, *observers)
            drive(plan, executor, watching, start=start.progress, interrupted=interrupted)
    return Run(folder)


def _executor(experiment: Experiment, plan: Plan, states: States) -> Executor:
    executor = _workers(experiment, plan, states)
    return Faulty(executor, plan) if plan.faults.inject.shares else executor


def _workers(experiment: Experiment, plan: Plan, states: States) -> Executor:
    workers = experiment.engine.workers
    if workers.kind == "threads":
        return Threads(plan, workers.count, states)
    count = workers.count or (cores() if is_long(plan) else 1)
    if count == 1:
        return Serial(plan, states)
    return Pool(plan, partial(plan_from_json, json.dumps(experiment.plain())), count, states)


class Made(NamedTuple):
    """Everything that an experiment names."""

    experiment: Experiment
    """with all that it left open written out"""
    plan: Plan
    data: FederatedData


def make_plan(experiment: Experiment, data_dir: Path) -> Made:
    """Build everything that the experiment names."""
    check_device(experiment.engine.device)
    source: Source = experiment.data.make("data")
    data = _divide(experiment, source.load(data_dir))
    experiment = dataclasses.replace(experiment, model=experiment.model or (Choice(source.default_model),))
    plan = plan_for(experiment, data)
    return Made(dataclasses.replace(experiment, clients=len(data)).resolved(), plan, data)


def plan_for(experiment: Experiment, data: FederatedData | Clients) -> Plan:
    """The run of this experiment, whose models are named, on these clients."""
    method: Method[Any, Any, Any, Any] = experiment.method.make("method")
    models = tuple(_first(experiment, c, data.task, k) for k, c in enumerate(experiment.model))
    other = experiment.server_model
    _check_models(experiment.method.name, method, models)
    if experiment.robust.rule != "mean" and not isinstance(method, Averaging):
        raise ConfigError(
            f"robust.rule is {experiment.robust.rule!r}, but {experiment.method.name} averages in its own way."
        )
    if isinstance(data, FederatedData):
        data.channels_last = any(map(channels_last, models))
    plan = Plan(
        method=method,
        models=models,
        server_model=None if other is None else _first(experiment, other, data.task, len(models)),
        data=data if isinstance(data, Clients) else data.clients,
        train=experiment.train,
        sampling=experiment.sampling,
        evaluate=experiment.evaluate,
        stop=experiment.stop,
        rounds=experiment.rounds,
        seed=experiment.seed,
        device=experiment.engine.device,
        cache=experiment.engine.cache,
        stack=experiment.engine.stack,
        faults=experiment.faults,
        robust=experiment.robust,
        privacy=experiment.privacy,
    )
    return plan if experiment.privacy.clip is None else rehearsed(experiment, plan)


def plan_from_json(text: str, data: Clients) -> Plan:
    """The same plan in another process, which need not read the data again."""
    return plan_for(experiment_from(json.loads(text)), data)


def divided(experiment: Experiment, data_dir: Path) -> FederatedData:
    """The experiment's data over its clients, and nothing else built."""
    source: Source = experiment.data.make("data")
    return _divide(experiment, source.load(data_dir))


def _divide(experiment: Experiment, dataset: Dataset) -> FederatedData:
    if experiment.fraction < 1:
        rng = np.random.default_rng(seed_of(experiment.data_seed, "fraction"))
        kept = np.sort(rng.permutation(len(dataset.y))[: max(1, round(experiment.fraction * len(dataset.y)))])
        dataset = dataset.subset(kept)
    rng = np.random.default_rng(seed_of(experiment.data_seed, "partition"))
    scheme = experiment.partition.make("partition")
    natural = len(dataset.owners) if experiment.partition.name == "natural" else 0
    clients = experiment.clients or natural or 20
    return FederatedData(dataset, divide_all(dataset, scheme, parse(experiment.split), clients, rng))


def _first(experiment: Experiment, choice: Choice, task: Task, k: int) -> SplitModel:
    """The initial network of the k-th architecture: drawn once from the run's seed, the same for all who have it."""
    family: Model = choice.make("model")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(experiment.seed, "model", k))
        model = family.build(task)
    model.policy = experiment.buffers
    return laid_out(model.eval())


def _check_models(name: str, method: Method[Any, Any, Any, Any], models: tuple[SplitModel, ...]) -> None:
    if len(models) > 1 and method.heterogeneous == "no":
        raise ConfigError(f"model names {len(models)} networks, but {name} needs the same one for all clients.")
    heads = {tuple(p.shape for p in m.head.parameters()) for m in models}
    if len(heads) > 1 and method.heterogeneous == "same head":
        raise ConfigError(f"model names networks with different heads, but {name} needs one width for all.")


def data_folder(given: str | Path | None) -> Path:
    """Where public data sets are: as given, else HEADWISE_DATA, else a cache in the user's home."""
    return Path(given or os.environ.get("HEADWISE_DATA") or Path.home() / ".cache" / "headwise")


def usual_folder(experiment: Experiment) -> Path:
    """Where a run goes if nobody says where."""
    return free_folder(f"{Path(experiment.method.name).stem}-{experiment.data.name}-s{experiment.seed}")


def free_folder(name: str, root: Path = Path("runs")) -> Path:
    """A new folder of this name, numbered where it is taken."""
    name = re.sub(r"[^\w.-]", "-", name)
    taken = {p.name for p in root.glob(f"{name}*")}
    return root / next(n for k in range(1, 10**6) if (n := name if k == 1 else f"{name}-{k}") not in taken)
