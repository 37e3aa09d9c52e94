"""Which methods can do which task, and the sentence for those that can't."""

from __future__ import annotations

from typing import Any

from ..contract.method import Method
from ..errors import ConfigError
from ..models.base import Task
from ..settings import catalog
from ..settings.experiment import Experiment, find_class
from ..settings.options import TaskName
from ..tasks.registry import check_options


def methods_for(task: TaskName) -> list[str]:
    """The names of all methods that can do this task."""
    return [name for name in catalog.names("method") if task in find_class("method", name).tasks]


def check_task(experiment: Experiment, method: Method[Any, Any, Any, Any], task: Task) -> None:
    """Raise if the method, the options of training or privacy can't do this task."""
    if task.kind not in method.tasks:
        said = f"{experiment.method.name} can only do {' and '.join(method.tasks)}"
        raise ConfigError(f"task is {task.kind!r}, but {said}: choose one of {', '.join(methods_for(task.kind))}.")
    train, privacy = experiment.train, experiment.privacy
    check_options(task, train.class_weights, train.label_smoothing)
    if privacy.clip is None:
        return
    if task.kind == "regression":
        measured = "the mean and the deviation of its targets are measured without protection"
        raise ConfigError(f"privacy.clip is {privacy.clip:g}, but task is 'regression', and {measured}.")
    if privacy.level == "example" and train.class_weights == "balanced":
        raise ConfigError("privacy.level is 'example', but train.class_weights is 'balanced', which counts examples.")
