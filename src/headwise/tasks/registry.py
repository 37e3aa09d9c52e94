"""The tasks by name. To add one, write its file, and add its class and its name here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, cast

from .base import Objective, Task, TaskKind
from .classification import Classification
from .multilabel import Multilabel
from .regression import Regression
from .segmentation import Segmentation

TaskName = Literal["classification", "multilabel", "regression", "segmentation"]
_KINDS: tuple[TaskKind, ...] = (Classification(), Multilabel(), Regression(), Segmentation())
TASKS: Mapping[TaskName, TaskKind] = {cast(TaskName, kind.name): kind for kind in _KINDS}


def kind_of(task: Task | str) -> TaskKind:
    """The kind of a task, or of the task with this name."""
    return TASKS[cast(TaskName, task if isinstance(task, str) else task.kind)]


@lru_cache(maxsize=64)
def objective_of(
    task: Task, weights: tuple[float, ...] | None = None, smoothing: float = 0.0, device: str = "cpu"
) -> Objective:
    """The task's loss; `weights` are those of its classes, or of the ones of each label."""
    import torch

    own_weights = None if weights is None else torch.tensor(weights, device=device)
    return kind_of(task).objective(task, own_weights, smoothing, device)
