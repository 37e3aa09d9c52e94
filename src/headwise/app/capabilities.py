"""Which methods can do which task, and the sentence for those that can't."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..app import registry
from ..contract.method import Method
from ..errors import ConfigError
from ..models.base import Task
from ..models.split import SplitModel
from ..settings.experiment import Experiment
from ..settings.names import list_names
from ..settings.options import TaskName
from ..tasks.registry import kind_of


def methods_for(task: TaskName) -> list[str]:
    """The names of all methods that can do this task."""
    return [name for name in list_names("method") if task in registry.find("method", name).tasks]


def check_outputs(experiment: Experiment, models: Sequence[SplitModel], task: Task) -> None:
    """Raise unless the networks score each class of each pixel, where pixels have classes."""
    if not kind_of(task).per_pixel:
        return
    wanted = (task.classes, *task.shape[1:])
    for choice, model in zip(experiment.model, models, strict=True):
        with torch.no_grad():
            found = tuple(model(torch.zeros(1, *task.shape)).shape[1:])
        if found != wanted:
            need = f"task is {task.kind!r}, which needs {wanted}: classes, height and width, as fcn has them"
            raise ConfigError(f"model is {choice.name!r}, whose scores have the shape {found}, but {need}.")


def check_task(experiment: Experiment, method: Method[Any, Any, Any, Any], task: Task) -> None:
    """Raise if the method, the options of training or privacy can't do this task."""
    if task.kind not in method.tasks:
        said = f"{experiment.method.name} can only do {' and '.join(method.tasks)}"
        raise ConfigError(f"task is {task.kind!r}, but {said}: choose one of {', '.join(methods_for(task.kind))}.")
    train, privacy = experiment.train, experiment.privacy
    kind_of(task).check_options(task, train.class_weights, train.label_smoothing)
    if privacy.clip is None:
        return
    if kind_of(task).quantitative and experiment.target_range is None:
        measured = "the mean and the deviation of its targets are measured without protection"
        can = "set target_range to the lowest and highest value that a target can have, such as [0, 350]"
        raise ConfigError(f"privacy.clip is {privacy.clip:g}, but task is {task.kind!r}, and {measured}: {can}.")
    if privacy.level == "example" and train.class_weights == "balanced":
        raise ConfigError("privacy.level is 'example', but train.class_weights is 'balanced', which counts examples.")
