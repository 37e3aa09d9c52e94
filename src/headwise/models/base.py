"""The contract of a model family."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from ..settings.fields import Checked
from ..tasks.base import Task as Task
from .split import SplitModel


class Model(Checked, ABC):
    """A family of networks: a frozen dataclass whose fields are its options."""

    kind: ClassVar[str] = "model"

    @abstractmethod
    def build(self, task: Task) -> SplitModel:
        """A freshly initialised network for this task."""
