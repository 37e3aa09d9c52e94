"""MLP — Rumelhart, Hinton, Williams, Nature 1986. https://doi.org/10.1038/323533a0"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

from torch import nn

from ..memory import check_memory
from ..settings.fields import Range
from .base import Model, Task, count_inputs, dense
from .split import SplitModel


@dataclass(frozen=True)
class MLP(Model):
    """Fully connected layers with ReLU over the flattened sample."""

    hidden: Annotated[int, Range(1, 65_536)] = 64
    "units in each hidden layer"
    layers: Annotated[int, Range(1, 100)] = 1
    "number of hidden layers"

    def build(self, task: Task) -> SplitModel:
        widths = [count_inputs(self, task), *[self.hidden] * self.layers, task.classes]
        weights = sum(a * b for a, b in pairwise(widths))
        check_memory(16 * weights, f"model with hidden = {self.hidden} and layers = {self.layers}")  # and its gradient
        body = nn.Sequential(nn.Flatten(), *dense(*widths[:-1]))
        return SplitModel(body, nn.Linear(self.hidden, task.classes))
