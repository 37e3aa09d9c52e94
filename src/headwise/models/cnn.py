"""CNN — McMahan, Moore, Ramage, Hampson, Agüera y Arcas, AISTATS 2017. https://arxiv.org/abs/1602.05629

FedAvg's four-layer network as papers on personalization use it: without padding, so it is smaller than the original.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from .base import Model, Task, convolutions, dense
from .split import SplitModel

FEATURES = 512


@dataclass(frozen=True)
class CNN(Model):
    """Two convolutions (32 and 64 channels), 512 features, one linear head; for images of 16 x 16 and more."""

    def build(self, task: Task) -> SplitModel:
        layers, width = convolutions(self, task, 32, 64)
        body = nn.Sequential(*layers, *dense(width, FEATURES))
        return SplitModel(body, nn.Linear(FEATURES, task.classes))
