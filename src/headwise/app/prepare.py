"""Builds what an experiment names: the data of each client, the networks, the plan."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch

from ..contract.averaging import Averaging
from ..contract.method import Method, record_types
from ..data.dataset import Dataset, Source
from ..data.federated import CHUNK, Clients, FederatedData
from ..data.own.load import MANY
from ..data.preprocessing import privacy_objection
from ..data.sources.own import Own
from ..data.splits import NOTHING, Parts, Summary, divide_all, hold_out, parse_split
from ..engine.drift import check_drift
from ..engine.host.devices import check_device
from ..engine.host.drawing import drawing
from ..engine.plan import Plan
from ..engine.sampling import newcomers
from ..errors import ConfigError, RunError
from ..log.metrics import metrics_to_measure
from ..models.base import Model, Task
from ..models.split import SplitModel, channels_last, check_apart, lay_out
from ..params import Params
from ..privacy.mechanisms import protect_plan
from ..records import Nothing, fields_of
from ..runs.query import number_of
from ..seeds import seed_of
from ..settings.choices import Choice
from ..settings.experiment import Experiment, experiment_from
from ..settings.names import SITES
from ..tasks.base import DEFAULT
from . import registry
from .capabilities import check_outputs, check_task
from .floors import floors_of
from .local_training import check_training


class Prepared(NamedTuple):
    """An experiment with everything that it names, built."""

    experiment: Experiment
    """with all defaults filled in"""
    plan: Plan
    summary: Summary
    histograms: dict[str, Any]
    """each client's samples per class, for each part of the split; and the names of classes and clients, if known"""


def prepare(experiment: Experiment, data_dir: Path) -> Prepared:
    check_device(experiment.engine.device)
    kind = experiment.engine.kind
    registry.check_installed(kind)
    if experiment.secure.sums and kind not in SITES:
        said = f"engine.kind is {kind!r}, which has no sites: it must be flower-sim."
        raise ConfigError(f"secure.sums is true, but {said}")
    data = divided(experiment, data_dir)
    unclear = data.dataset.label_type in ("int", "float") and len(data.dataset.classes) > MANY
    if experiment.task is None and (data.dataset.task != DEFAULT or unclear):
        for note in data.dataset.notes:
            logging.getLogger("headwise").warning("%s%s", note[0].upper(), note[1:])
    if experiment.privacy.clip is not None:
        _check_preprocessing(experiment.privacy.clip, data.dataset)
    usual = Choice(data.dataset.model or registry.make("data", experiment.data).default_model)
    experiment = dataclasses.replace(
        experiment,
        model=experiment.model or (usual,),
        task=data.task.kind,
        target_range=data.dataset.target_range,
    )
    plan = plan_for(experiment, data)
    experiment = registry.resolve_all(dataclasses.replace(experiment, clients=len(data)))
    counts = data.histograms()
    names = {"classes": list(data.dataset.strata.names), **({"names": list(data.names)} if data.names else {})}
    return Prepared(experiment, plan, data.summary, {**counts, **names, **floors_of(plan, counts)})


def plan_for(experiment: Experiment, data: FederatedData | Clients) -> Plan:
    """The plan of this experiment, which must name its models, on these clients."""
    experiment = registry.with_loaded_functions(experiment)
    method: Method[Any, Any, Any, Any] = registry.make("method", experiment.method)
    models = tuple(_first(experiment, c, data.task, k) for k, c in enumerate(experiment.model))
    other = experiment.server_model
    check_task(experiment, method, data.task)
    check_training(experiment, method, data.task)
    _check_models(experiment.method.name, method, models)
    check_outputs(experiment, models, data.task)
    metrics_to_measure(
        data.task.kind, experiment.evaluate.metrics, experiment.evaluate.metric
    )  # refuses what does not apply
    if experiment.robust.rule != "mean" and not isinstance(method, Averaging):
        raise ConfigError(
            f"robust.rule is {experiment.robust.rule!r}, but {experiment.method.name} averages in its own way."
        )
    if experiment.secure.sums:
        _check_sums(experiment, method)
    if experiment.drift.round:
        check_drift(experiment, len(data) if isinstance(data, Clients) else len(data.parts))
    plan = Plan(
        experiment=experiment,
        method=method,
        models=models,
        data=data if isinstance(data, Clients) else data.clients(channels_last=any(map(channels_last, models))),
        server_model=None if other is None else _first(experiment, other, data.task, len(models)),
        device=experiment.engine.device,
    )
    return protect_plan(plan)


def plan_from_json(text: str, data: Clients) -> Plan:
    """The same plan in another process, without reading the data again."""
    return plan_for(experiment_from(json.loads(text)), data)


def divided(experiment: Experiment, data_dir: Path) -> FederatedData:
    """The experiment's data, loaded and divided among its clients."""
    source: Source = registry.make("data", experiment.data)
    if isinstance(source, Own):
        source = dataclasses.replace(source, task=source.task or experiment.task)
    dataset = source.load(data_dir)
    if experiment.task not in (None, dataset.task):
        raise ConfigError(f"task is {experiment.task!r}, but {experiment.data.name} is data for {dataset.task}.")
    dataset = dataset.with_range(experiment.target_range)
    if experiment.fraction < 1:
        rng = np.random.default_rng(seed_of(experiment.data_seed, "fraction"))
        kept = np.sort(rng.permutation(len(dataset.y))[: max(1, round(experiment.fraction * len(dataset.y)))])
        dataset = dataset.subset(kept)
    rng = np.random.default_rng(seed_of(experiment.data_seed, "partition"))
    scheme = registry.make("partition", experiment.partition)
    natural = len(dataset.owners) if experiment.partition.name == "natural" else 0
    asked = experiment.origin.divided if experiment.origin.run else experiment.clients
    clients = asked or natural or 20
    parts = divide_all(dataset, scheme, parse_split(experiment.split), clients, rng)
    parts = hold_out(parts, experiment.evaluate.validation, seed_of(experiment.data_seed, "validation"))
    names = [dataset.owners[k] for k in np.unique(dataset.owner)] if natural and dataset.owner is not None else ()
    parts, names, left = numbered(parts, names, experiment.origin.clients)
    absent = left | {_number(who, names, len(parts)) for who in experiment.without}
    new = newcomers(experiment, len(parts))
    if len(absent.union(new)) == len(parts):
        said = f"without is {list(experiment.without)} and evaluate.new_clients is {experiment.evaluate.new_clients:g}"
        raise ConfigError(f"{said}, but then none of the {len(parts)} clients is left to train.")
    return FederatedData(dataset, parts, names, absent=absent, newcomers={*new} - absent)


def numbered(
    parts: list[Parts], names: Sequence[str], known: Sequence[str]
) -> tuple[list[Parts], Sequence[str], set[int]]:
    """The clients in the order of those that a run already knows, then new ones; and the numbers of those that left."""
    if not known:
        return parts, names, set()
    here = dict(zip(names or map(str, range(len(parts))), parts, strict=True))
    order = [*dict.fromkeys([*known, *here])]
    nothing = Parts(NOTHING, NOTHING, NOTHING)
    left = {c for c, name in enumerate(order) if name not in here}
    return [here.get(name, nothing) for name in order], order if names else (), left


def _number(who: str, names: Sequence[str], clients: int) -> int:
    try:
        return number_of(who, names, clients, "this data")
    except RunError as error:
        raise ConfigError(f"without names {who!r}, but {error}") from error


def _check_preprocessing(clip: float, dataset: Dataset) -> None:
    """Refuse preprocessing that is fitted on several clients' samples: no mechanism protects their sums."""
    blocks = range(0, len(dataset.x) if dataset.x.dtype.kind == "f" else 0, CHUNK)  # it may be larger than memory
    missing = any(np.isnan(dataset.x[at : at + CHUNK]).any() for at in blocks)
    if dataset.recipe is not None and (why := privacy_objection(dataset.recipe, missing)):
        raise ConfigError(f"privacy.clip is {clip:g}, but in the data.toml, {why}.")


def _first(experiment: Experiment, choice: Choice, task: Task, k: int) -> SplitModel:
    """The initial network of the k-th architecture, drawn from the run's seed: the same for all of its clients."""
    family: Model = registry.make("model", choice)
    with drawing(seed_of(experiment.seed, "model", k)):
        model = family.build(task)
    check_apart(model, "head", f"model is {choice.name!r}")
    model.batchnorm = experiment.buffers
    return lay_out(model.eval())


def _check_sums(experiment: Experiment, method: Method[Any, Any, Any, Any]) -> None:
    """Refuse what needs single messages, because masks hide them."""
    name, masked = experiment.method.name, "secure.sums is true, but"
    if method.needs() not in ("samples", "clients"):
        needs = (
            "every single message" if method.needs() == "none" else "sums label by label, which can't be masked here"
        )
        raise ConfigError(f"{masked} the server of {name} needs {needs}.")
    if record_types(type(method)).census is not Nothing:
        raise ConfigError(f"{masked} clients of {name} answer a census, which is not masked.")
    tensors = {Params, torch.Tensor, type(None)}
    up = fields_of(record_types(type(method)).up)
    if strange := [f for f, kind in up.items() if not set(get_args(kind) or (kind,)) <= tensors]:
        raise ConfigError(f"{masked} what {name} sends has {strange[0]!r}, which is not a tensor.")
    if experiment.robust.rule != "mean":
        raise ConfigError(f"{masked} robust.rule is {experiment.robust.rule!r}, which looks at single messages.")
    if experiment.faults.inject.shares:
        raise ConfigError(f"{masked} faults.inject spoils single messages.")


def _check_models(name: str, method: Method[Any, Any, Any, Any], models: tuple[SplitModel, ...]) -> None:
    if len(models) > 1 and method.heterogeneous == "no":
        raise ConfigError(f"model names {len(models)} networks, but {name} needs the same one for all clients.")
    heads = {tuple(p.shape for p in m.head.parameters()) for m in models}
    if len(heads) > 1 and method.heterogeneous == "same head":
        raise ConfigError(f"model names networks with different heads, but {name} needs one width for all.")
