"""The contract of a model family."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from ..settings.fields import Checked
from ..settings.options import TaskName
from .split import SplitModel


@dataclass(frozen=True)
class Task:
    """What a model must know about the data: the shape of a sample, what to predict, and the vocabulary of texts."""

    shape: tuple[int, ...]
    classes: int
    """outputs of the head: classes, labels, quantities, or the classes of pixels"""
    vocabulary: int = 0
    kind: TaskName = field(default="classification", repr=False)
    """what these outputs are"""
    centre: tuple[float, ...] = field(default=(), repr=False)
    """with `spread`, what quantities are measured from and in: as their mean and standard deviation"""
    spread: tuple[float, ...] = field(default=(), repr=False)


class Model(Checked, ABC):
    """A family of networks: a frozen dataclass whose fields are its options."""

    kind: ClassVar[str] = "model"

    @abstractmethod
    def build(self, task: Task) -> SplitModel:
        """A freshly initialised network for this task."""
