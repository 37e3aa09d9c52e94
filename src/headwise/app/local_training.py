"""Which settings of local training a method, the data and privacy allow, and the sentence for those that can't be."""

from __future__ import annotations

from typing import Any

import torch

from ..contract.method import Method
from ..engine.client.augmenting import apply_function
from ..engine.plan import Plan
from ..errors import ConfigError
from ..models.base import Task
from ..settings.experiment import Experiment

WHY = {"sgd": "the mathematics of {} needs sgd, without clipping", "own": "{} takes its own steps, as published"}


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
        said = f"train.epochs is {train.epochs}" if train.steps is None else f"train.steps is {train.steps}"
        raise ConfigError(f"{said}, {private}, and epsilon only covers whole epochs.")


def check_augment(plan: Plan) -> None:
    """Raise unless each function works, and the same draws give the same batch: otherwise no run could be repeated."""
    own = [a for a in plan.experiment.train.augment if not a.is_built_in]
    if not own or plan.data.reported_labels is not None:
        return
    data = plan.data.client(next(c for c in range(len(plan.data)) if plan.data.sizes(c)[0])).train
    x, y = data.x[:8], data.y[:8]
    for change in own:
        try:
            (first, a), (again, b) = (apply_function(x, y, change, torch.Generator().manual_seed(0)) for _ in range(2))
        except ConfigError:
            raise
        except Exception as error:  # another's code can raise anything
            why = f"{type(error).__name__}: {error}"
            raise ConfigError(f"train.augment is {change.title!r}, which failed on a batch: {why}.") from error
        if not (torch.equal(first, again) and torch.equal(a, b)):
            why = "which gives another batch when called again: draw from the generator that it is given"
            raise ConfigError(f"train.augment is {change.title!r}, {why}.")
