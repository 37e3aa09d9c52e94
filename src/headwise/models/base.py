"""The contract of a model family."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from ..settings.fields import Checked
from .split import SplitModel


@dataclass(frozen=True)
class Task:
    """What a model must know about the data: the shape of a sample, the classes, and the vocabulary of texts."""

    shape: tuple[int, ...]
    classes: int
    vocabulary: int = 0


class Model(Checked, ABC):
    """A family of networks: a frozen dataclass whose fields are its options."""

    kind: ClassVar[str] = "model"

    @abstractmethod
    def build(self, task: Task) -> SplitModel:
        """A freshly initialised network for this task."""
