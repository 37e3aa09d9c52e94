"""Checks that settings fit the method, the task, the data and each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, islice
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from ..contract.method import Method, record_types
from ..data.dataset import Dataset
from ..data.federated import CHUNK
from ..data.preprocessing import find_privacy_objection
from ..engine.client.augmenting import apply_function
from ..engine.driver import drive
from ..engine.executors.local import RecordingExecutor
from ..engine.host import use_one_thread
from ..engine.plan import Plan
from ..errors import ClientError, ConfigError
from ..models.base import Task
from ..models.split import SplitModel
from ..params import Params
from ..records import Nothing, encode, fields_of
from ..settings.experiment import Experiment
from ..settings.names import list_names
from ..settings.options import TaskName
from ..tasks.registry import kind_of
from ..tasks.weights import OWN_LOSS
from . import registry

WHY = {"sgd": "the mathematics of {} needs sgd, without clipping", "own": "{} takes its own steps, as published"}
ROUNDS = 2
"""some methods do more once a client has its own model"""
FEW = 8
"""samples of a client in a rehearsal"""


def methods_for(task: TaskName) -> list[str]:
    """The names of all methods that can do this task."""
    return [name for name in list_names("method") if task in registry.find("method", name).tasks]


def check_outputs(experiment: Experiment, models: Sequence[SplitModel], task: Task) -> None:
    """Raise unless the networks score each class of each pixel, where pixels have classes."""
    if not kind_of(task).per_pixel:
        return
    needed = (task.classes, *task.shape[1:])
    for choice, model in zip(experiment.model, models, strict=True):
        with torch.no_grad():
            shape = tuple(model(torch.zeros(1, *task.shape)).shape[1:])
        if shape != needed:
            why = f"task is {task.kind!r}, which needs {needed}: classes, height and width, as fcn has them"
            raise ConfigError(f"model is {choice.name!r}, whose scores have the shape {shape}, but {why}.")


def check_task(experiment: Experiment, method: Method[Any, Any, Any, Any], task: Task) -> None:
    """Raise if the method, the options of training or privacy can't do this task."""
    if task.kind not in method.tasks:
        able = f"{experiment.method.name} can only do {' and '.join(method.tasks)}"
        raise ConfigError(f"task is {task.kind!r}, but {able}: choose one of {', '.join(methods_for(task.kind))}.")
    train = experiment.train
    privacy = experiment.privacy
    kind_of(task).check_options(task, train.class_weights, train.label_smoothing)
    if privacy.clip is None:
        return
    if kind_of(task).quantitative and experiment.target_range is None:
        measured = "the mean and the deviation of its targets are measured without protection"
        can = "set target_range to the lowest and highest value that a target can have, such as [0, 350]"
        raise ConfigError(f"privacy.clip is {privacy.clip:g}, but task is {task.kind!r}, and {measured}: {can}.")
    if privacy.level == "example" and train.class_weights == "balanced":
        raise ConfigError("privacy.level is 'example', but train.class_weights is 'balanced', which counts examples.")


def check_training(experiment: Experiment, method: Method[Any, Any, Any, Any], task: Task) -> None:
    train = experiment.train
    optimizer = f"train.optimizer is {train.optimizer!r}" if train.optimizer != "sgd" else ""
    clip = f"train.clip is {train.clip:g}" if train.clip is not None else ""
    augment = f"train.augment is {[a.name for a in train.augment]}" if train.augment else ""
    images = any(a.is_built_in for a in train.augment)
    if method.optimizers != "any" and (optimizer or clip):
        raise ConfigError(f"{optimizer or clip}, but {WHY[method.optimizers].format(experiment.method.name)}.")
    if clip and "clip" in vars(method):
        raise ConfigError(f"{clip}, but {experiment.method.name} clips by its own option: set method.clip.")
    if images and (len(task.shape) != 3 or task.vocabulary):
        shape = " x ".join(map(str, task.shape)) or "one number"
        raise ConfigError(f"{augment}, but samples of {experiment.data.name} ({shape}) are not images.")
    if experiment.privacy.clip is None or experiment.privacy.level != "example":
        return
    private = "but privacy.level is 'example'"
    if clip:
        raise ConfigError(f"{clip}, {private}, which clips by privacy.clip.")
    if augment:
        raise ConfigError(f"{augment}, {private}, and epsilon only covers samples as they are.")
    if train.steps is not None or train.epochs != int(train.epochs):
        setting = f"train.epochs is {train.epochs}" if train.steps is None else f"train.steps is {train.steps}"
        raise ConfigError(f"{setting}, {private}, and epsilon only covers whole epochs.")


def check_augment(plan: Plan) -> None:
    """Raise unless each function works and returns the same batch for the same draws, as a repeatable run needs."""
    own = [a for a in plan.experiment.train.augment if not a.is_built_in]
    if not own or plan.data.reported_labels is not None:
        return
    data = plan.data.client(next(c for c in range(len(plan.data)) if plan.data.sizes(c)[0])).train
    x = data.x[:8]
    y = data.y[:8]
    for change in own:
        try:
            (first, a), (again, b) = (apply_function(x, y, change, torch.Generator().manual_seed(0)) for _ in range(2))
        except ConfigError:
            raise
        except Exception as error:  # another's code can raise anything
            why = f"{type(error).__name__}: {error}"
            raise ConfigError(f"train.augment is {change.title!r}, which failed on a batch: {why}.") from error
        if not (torch.equal(first, again) and torch.equal(a, b)):
            why = "which returns another batch when called again: draw only from the generator that it gets"
            raise ConfigError(f"train.augment is {change.title!r}, {why}.")


def check_preprocessing(clip: float, dataset: Dataset) -> None:
    """Refuse preprocessing that is fitted on several clients' samples: no mechanism protects their sums."""
    blocks = range(0, len(dataset.x) if dataset.x.dtype.kind == "f" else 0, CHUNK)  # it may be larger than memory
    missing = any(np.isnan(dataset.x[at : at + CHUNK]).any() for at in blocks)
    if dataset.recipe is not None and (why := find_privacy_objection(dataset.recipe, missing)):
        raise ConfigError(f"privacy.clip is {clip:g}, but in the data.toml, {why}.")


def check_sums(experiment: Experiment, method: Method[Any, Any, Any, Any]) -> None:
    """Refuse what needs single messages, because masks hide them."""
    name = experiment.method.name
    masked = "secure.sums is true, but"
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


def check_models(experiment: Experiment, method: Method[Any, Any, Any, Any], models: tuple[SplitModel, ...]) -> None:
    name = experiment.method.name
    if method.without_body == "fails" and (bare := _find_bare(experiment, models)):
        raise ConfigError(f"{bare}, but {name} trains the body: choose another model, such as mlp.")
    if len(models) > 1 and method.heterogeneous == "no":
        raise ConfigError(f"model names {len(models)} networks, but {name} needs the same one for all clients.")
    heads = {tuple(p.shape for p in m.head.parameters()) for m in models}
    if len(heads) > 1 and method.heterogeneous == "same head":
        raise ConfigError(f"model names networks with different heads, but {name} needs one width for all.")


def describe_sharing(
    experiment: Experiment, method: Method[Any, Any, Any, Any], models: tuple[SplitModel, ...]
) -> str | None:
    """A warning if clients share nothing of the network; not an error, so that a comparison can continue."""
    bare = _find_bare(experiment, models)
    if not bare or method.without_body != "alone":
        return None
    return f"{bare}, and {experiment.method.name} shares nothing else: every client trains alone."


def _find_bare(experiment: Experiment, models: tuple[SplitModel, ...]) -> str:
    for choice, model in zip(experiment.model, models, strict=True):
        if not any(True for _ in model.body.parameters()):
            return f"model is {choice.name!r}, whose body has no parameters"
    return ""


def check_weights(plan: Plan) -> None:
    """Raise if the data have sample weights, and the run would ignore them."""
    weight = plan.data.weight
    if weight is None:
        return
    experiment = plan.experiment
    has = "the data have sample weights"
    if experiment.drift.round:
        raise ConfigError(f"drift.round is {experiment.drift.round}, but {has}, which do not drift.")
    if experiment.privacy.clip is not None and experiment.privacy.level == "example":
        raise ConfigError(f"privacy.level is 'example', but {has}, which no mechanism protects.")
    for c in plan.clients:
        start = plan.data.start(c)
        if not float(weight[start : start + plan.data.sizes(c)[0]].sum()) > 0:
            raise ConfigError(f"{plan.data.describe(c)} has no training sample whose weight is above 0.")
    if _rehearse(plan, torch.ones(FEW)) == _rehearse(plan, torch.arange(1.0, FEW + 1)):
        raise ConfigError(f"{OWN_LOSS}.")


def check_loss(plan: Plan) -> None:
    """Raise if the method has a loss of its own, which would ignore the options of the task's."""
    train = plan.experiment.train
    name = "label_smoothing" if train.class_weights is None else "class_weights"
    value = getattr(train, name)
    if not value or plan.data.reported_labels is not None:
        return
    plain = [replace(train, class_weights=None, label_smoothing=smoothing) for smoothing in (0.0, 0.5)]
    ends = [_rehearse(plan.with_settings(train=options), None) for options in plain]
    if ends[0] == ends[1]:
        given = list(value) if isinstance(value, tuple) else value
        own = f"but {plan.experiment.method.name} has a loss of its own, which would ignore it"
        raise ConfigError(f"train.{name} is {given!r}, {own}: choose another method, or leave it out.")


def _rehearse(plan: Plan, weights: Tensor | None) -> list[bytes | None]:
    """What a few clients send and keep in two rounds on some of the samples, with these weights."""
    data = plan.data
    count = max(2, len(plan.models))
    able = [*islice((c for c in plan.clients if data.sizes(c)[0]), count)]
    first = [data.client(c).train for c in islice(cycle(able), count)]
    kept = [min(len(samples), FEW) for samples in first]
    few = replace(  # each client's last sample is also its test sample, so that it makes its model from its samples
        data,
        x=torch.cat([samples.x[[*range(n), n - 1]] for samples, n in zip(first, kept, strict=True)]),
        y=torch.cat([samples.y[[*range(n), n - 1]] for samples, n in zip(first, kept, strict=True)]),
        ends=np.cumsum([(n, 0, 1) for n in kept]).reshape(-1, 3),
        names=(),
        absent=frozenset(),
        weight=None if weights is None else torch.cat([weights[[*range(n), n - 1]] for n in kept]),
    )
    train = replace(plan.experiment.train, epochs=1, steps=None, drop_last=False)
    small = replace(plan, data=few).with_settings(train=train).for_rehearsal()
    small = small.with_settings(evaluate=replace(small.experiment.evaluate, moments=("pre",), every=1))
    executor = RecordingExecutor(small)
    try:
        with use_one_thread():
            drive(small, executor, rounds=ROUNDS)
    except ClientError as error:
        raise error.__cause__ if isinstance(error.__cause__, ConfigError) else error from None
    sent = [encode(answer.up) for _, answer in executor.handled if answer.up is not None]
    return [*sent, *(executor.states.encode(c) for c in executor.states)]
