"""Builds what an experiment names: the data of each client, the networks, the plan."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..contract.averaging import Averaging
from ..contract.method import Method
from ..data.dataset import Source
from ..data.federated import Clients, FederatedData
from ..data.own.load import MANY
from ..data.sources.own import Own
from ..data.splits import NOTHING, Parts, Summary, divide_all, hold_out, measure_floor, parse_split, redraw
from ..engine.client.scoring import score, summarize_clients
from ..engine.drawing import draw_alike
from ..engine.drift import check_drift
from ..engine.host import check_device
from ..engine.plan import Plan
from ..engine.sampling import newcomers
from ..errors import ConfigError, RunError, capitalize
from ..log.metrics import ACCURACY, metrics_to_measure
from ..models.base import Model, Task
from ..models.split import SplitModel, channels_last, check_apart, lay_out
from ..privacy.mechanisms import protect_plan
from ..runs.query import number_of
from ..seeds import seed_of
from ..settings.choices import Choice
from ..settings.experiment import Experiment, experiment_from
from ..settings.names import SITES
from ..tasks.base import DEFAULT
from ..tasks.registry import kind_of, objective_of
from . import registry
from .checks import (
    check_models,
    check_outputs,
    check_preprocessing,
    check_sums,
    check_task,
    check_training,
    describe_sharing,
)

Guess = tuple[Tensor, Tensor]
"""constant predictions for a client's test samples, and their targets"""


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
        raise ConfigError(
            f"secure.sums is true, but engine.kind is {kind!r}, which has no sites: it must be flower-sim."
        )
    data = divide(experiment, data_dir)
    unclear = data.dataset.label_type in ("int", "float") and len(data.dataset.classes) > MANY
    if experiment.task is None and (data.dataset.task != DEFAULT or unclear):
        for note in data.dataset.notes:
            logging.getLogger("headwise").warning("%s", capitalize(note))
    if experiment.privacy.clip is not None:
        check_preprocessing(experiment.privacy.clip, data.dataset)
    usual = Choice(data.dataset.model or registry.make("data", experiment.data).default_model)
    experiment = dataclasses.replace(
        experiment,
        model=experiment.model or (usual,),
        task=data.task.kind,
        target_range=data.dataset.target_range,
    )
    if experiment.stop.patience and not any(len(parts.val) for parts in data.parts):
        logging.getLogger("headwise").warning(
            "stop.patience is %d, but there are no validation samples: the run stops by its test scores, which "
            "makes them too good. A split such as 6:2:2 sets validation samples aside.",
            experiment.stop.patience,
        )
    plan = plan_for(experiment, data)
    if alone := describe_sharing(experiment, plan.method, plan.models):
        logging.getLogger("headwise").warning("%s", capitalize(alone))
    experiment = registry.resolve_all(dataclasses.replace(experiment, clients=len(data)))
    counts = data.histograms()
    names = {"classes": list(data.dataset.strata.names), **({"names": list(data.names)} if data.names else {})}
    summary = with_measured_floor(data.summary, plan, counts)
    return Prepared(experiment, plan, summary, {**counts, **names, **floors_of(plan, counts)})


def plan_for(experiment: Experiment, data: FederatedData | Clients) -> Plan:
    """The plan of this experiment, which must name its models, on these clients."""
    experiment = registry.with_loaded_functions(experiment)
    method: Method[Any, Any, Any, Any] = registry.make("method", experiment.method)
    models = tuple(_build_first(experiment, c, data.task, k) for k, c in enumerate(experiment.model))
    other = experiment.server_model
    check_task(experiment, method, data.task)
    check_training(experiment, method, data.task)
    check_models(experiment, method, models)
    check_outputs(experiment, models, data.task)
    metrics_to_measure(
        data.task.kind, experiment.evaluate.metrics, experiment.evaluate.metric
    )  # refuses what does not apply
    if experiment.robust.rule != "mean" and not isinstance(method, Averaging):
        raise ConfigError(
            f"robust.rule is {experiment.robust.rule!r}, but {experiment.method.name} averages in its own way."
        )
    if experiment.secure.sums:
        check_sums(experiment, method)
    if experiment.drift.round:
        check_drift(experiment, len(data) if isinstance(data, Clients) else len(data.parts))
    plan = Plan(
        experiment=experiment,
        method=method,
        models=models,
        data=data if isinstance(data, Clients) else data.clients(channels_last=any(map(channels_last, models))),
        server_model=None if other is None else _build_first(experiment, other, data.task, len(models)),
        device=experiment.engine.device,
    )
    return protect_plan(plan)


def plan_from_json(text: str, data: Clients) -> Plan:
    """The same plan in another process, without reading the data again."""
    return plan_for(experiment_from(json.loads(text)), data)


def divide(experiment: Experiment, data_dir: Path) -> FederatedData:
    """The experiment's data, loaded and divided among its clients."""
    source: Source = registry.make("data", experiment.data)
    if isinstance(source, Own):
        source = dataclasses.replace(source, task=source.task or experiment.task)
    dataset = source.load(data_dir)
    if experiment.task not in (None, dataset.task):
        raise ConfigError(f"task is {experiment.task!r}, but {experiment.data.name} is data for {dataset.task}.")
    dataset = dataset.with_range(experiment.target_range)
    split = parse_split(experiment.split)
    if dataset.part is not None and not split.own:
        raise ConfigError(
            f"split is {experiment.split!r}, but the data already defines which samples are for training and "
            "which for testing: leave it out."
        )
    test_draw = _test_draw(experiment)
    if experiment.fraction < 1:
        rng = np.random.default_rng(seed_of(test_draw, "fraction"))
        kept = np.sort(rng.permutation(len(dataset.y))[: max(1, round(experiment.fraction * len(dataset.y)))])
        dataset = dataset.subset(kept)
    rng = np.random.default_rng(seed_of(test_draw, "partition"))
    scheme = registry.make("partition", experiment.partition)
    natural = len(dataset.owners) if experiment.partition.name == "natural" else 0
    clients = (experiment.origin.divided if experiment.origin.run else experiment.clients) or natural or 20
    parts = divide_all(dataset, scheme, split, clients, rng)
    if test_draw != experiment.data_seed:
        parts = redraw(dataset, parts, seed_of(experiment.data_seed, "partition"))
    parts = hold_out(parts, experiment.evaluate.validation, seed_of(experiment.data_seed, "validation"))
    names = [dataset.owners[k] for k in np.unique(dataset.owner)] if natural and dataset.owner is not None else ()
    parts, names, left = renumber(parts, names, experiment.origin.clients)
    absent = left | {_number(who, names, len(parts)) for who in experiment.without}
    new = newcomers(experiment, len(parts))
    if len(absent.union(new)) == len(parts):
        settings = (
            f"without is {list(experiment.without)} and evaluate.new_clients is {experiment.evaluate.new_clients:g}"
        )
        raise ConfigError(f"{settings}, but then none of the {len(parts)} clients is left to train.")
    return FederatedData(dataset, parts, names, absent=absent, newcomers={*new} - absent)


def _test_draw(experiment: Experiment) -> int:
    """The draw that decides which samples are for testing."""
    fixed = experiment.evaluate.test_draw
    if fixed is None:
        return experiment.data_seed
    if experiment.partition.name != "natural":
        raise ConfigError(
            f"evaluate.test_draw is {fixed}, but partition is {experiment.partition.name!r}: only natural clients keep "
            f"their test samples in all draws."
        )
    return fixed


def renumber(
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


def _build_first(experiment: Experiment, choice: Choice, task: Task, k: int) -> SplitModel:
    """The initial network of the k-th architecture, drawn from the run's seed: the same for all of its clients."""
    family: Model = registry.make("model", choice)
    with draw_alike(seed_of(experiment.seed, "model", k)):
        model = family.build(task)
    check_apart(model, "head", f"model is {choice.name!r}")
    model.batchnorm = experiment.buffers
    return lay_out(model.eval())


def with_measured_floor(summary: Summary, plan: Plan, counts: Mapping[str, Sequence[Sequence[int]]]) -> Summary:
    """The summary with the floor of the clients whose scores are reported: not of new or unmeasured ones."""
    if summary.floor.weighted is None:
        return summary
    measured = [*plan.measured]
    train, test = (np.array(counts[part])[measured] for part in ("train", "test"))
    return dataclasses.replace(summary, floor=measure_floor(train, test))


def floors_of(plan: Plan, counts: Mapping[str, Sequence[Sequence[int]]]) -> dict[str, Any]:
    """For partition.json: the metric over the measured clients and of every client, None where it is not defined.

    Empty for the accuracy of classes, which follows from the counts, and where only sites could compute it.
    """
    metric = plan.metric
    classes = kind_of(plan.task).one_class
    if (classes and metric is ACCURACY) or not (counts["train"] if classes else plan.data.reported_labels is None):
        return {}
    guesses = map(_guess_classes, counts["train"], counts["test"]) if classes else _guesses(plan)
    each = [None if guess is None else score(*guess, [metric], plan.task) for guess in guesses]
    over = summarize_clients({c: scores for c in plan.measured if (scores := each[c])}, metric)
    clients = [scores and scores.get(metric.name) for scores in each]
    return {"floors": {metric.name: {"over": over.get(metric.name), "clients": clients}}}


def _guess_classes(train: Sequence[int], test: Sequence[int]) -> Guess | None:
    """Class frequencies in the training samples, with one added to each count."""
    seen = torch.tensor(train, dtype=torch.float64) + 1
    y = torch.arange(len(test)).repeat_interleave(torch.tensor(test))
    return ((seen / seen.sum()).log().expand(len(y), -1), y) if len(y) else None


def _guesses(plan: Plan) -> Iterator[Guess | None]:
    objective = objective_of(plan.data.task)
    for c in range(len(plan.data)):
        data = plan.data.client(c)
        test = data.test.y
        guess = objective.in_target_units(objective.guess(data.train.y))
        yield (guess.expand(len(test), *guess.shape), test) if len(test) else None
