"""Linear — Cox, Journal of the Royal Statistical Society B 1958. https://doi.org/10.1111/j.2517-6161.1958.tb00292.x"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from .base import Model, Task, count_inputs
from .split import SplitModel


@dataclass(frozen=True)
class Linear(Model):
    """Logistic regression: the body only flattens the sample, so all parameters are in the head."""

    def build(self, task: Task) -> SplitModel:
        return SplitModel(nn.Flatten(), nn.Linear(count_inputs(self, task), task.classes))
