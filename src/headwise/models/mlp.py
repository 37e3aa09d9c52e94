"""MLP — Rumelhart, Hinton, Williams, Nature 1986. https://doi.org/10.1038/323533a0"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import nn

from ..settings import Range
from .base import Model, Task
from .parts import dense, flat
from .split import SplitModel


@dataclass(frozen=True)
class MLP(Model):
    """Fully connected layers with ReLU over the flattened sample."""

    hidden: Annotated[int, Range(1, 65_536)] = 64
    "units in each hidden layer"
    layers: Annotated[int, Range(1, 100)] = 1
    "number of hidden layers"

    def build(self, task: Task) -> SplitModel:
        """A freshly initialised network for this task."""
        body = nn.Sequential(nn.Flatten(), *dense(flat(self, task), *[self.hidden] * self.layers))
        return SplitModel(body, nn.Linear(self.hidden, task.classes))
