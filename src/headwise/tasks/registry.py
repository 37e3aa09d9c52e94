"""The objective of a run's task, with its options."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from ..errors import ConfigError
from ..models.base import Task
from .base import Objective
from .classification import Classification
from .multilabel import Multilabel
from .regression import Regression
from .segmentation import Segmentation


@lru_cache(maxsize=64)
def objective_of(
    task: Task, weights: tuple[float, ...] | None = None, smoothing: float = 0.0, device: str = "cpu"
) -> Objective:
    """Of this task; `weights` are those of its classes, or of the ones of each label."""
    w = None if weights is None else torch.tensor(weights, device=device)
    if task.kind == "regression":
        scale = torch.tensor([task.centre or (0.0,) * task.classes, task.spread or (1.0,) * task.classes])
        return Regression(*scale.to(device))
    if task.kind == "multilabel":
        return Multilabel(task.classes, None if w is None else torch.stack([torch.ones_like(w), w]), smoothing)
    return (Segmentation if task.kind == "segmentation" else Classification)(task.classes, w, smoothing)


def balanced(task: Task, y: Tensor, smoothing: float) -> Objective:
    """Every class that these targets have counts the same in all, and so do the zeros and ones of each label."""
    counts = objective_of(task).counts(y)
    if task.kind == "multilabel":
        return Multilabel(task.classes, _even(torch.stack([len(y) - counts, counts])), smoothing)
    kind = Segmentation if task.kind == "segmentation" else Classification
    return kind(task.classes, _even(counts), smoothing)


def _even(counts: Tensor) -> Tensor:
    """Weights whose mean over all that was counted is 1; what is not there has weight 1."""
    there = counts > 0
    even = counts.sum(0) / (there.sum(0) * counts.clamp(min=1))
    return torch.where(there, even, torch.ones_like(even))


def check_options(task: Task, weights: Sequence[float] | str | None, smoothing: float) -> None:
    """Raise unless these options of training suit the task."""
    if task.kind == "regression":
        for name, value, off in (("class_weights", weights, None), ("label_smoothing", smoothing, 0.0)):
            if value != off:
                raise ConfigError(f"train.{name} is {value!r}, but task is 'regression', which has no classes.")
    if isinstance(weights, tuple) and len(weights) != task.classes:
        raise ConfigError(
            f"train.class_weights has {len(weights)} numbers, but must have one for each of the {task.classes} classes."
        )


def blank(task: Task, n: int) -> Tensor:
    """Targets of this task's type and shape for `n` samples: class after class, or zeros."""
    if task.kind in ("multilabel", "regression"):
        return torch.zeros(n, task.classes)
    classes = torch.arange(n) % task.classes
    return classes if task.kind == "classification" else classes[:, None, None].expand(-1, *task.shape[1:]).clone()
