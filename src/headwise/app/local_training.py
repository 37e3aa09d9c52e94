"""Which settings of local training a method, the data and privacy allow, and the sentence for those that can't be."""

from __future__ import annotations

from typing import Any

from ..contract.method import Method
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
