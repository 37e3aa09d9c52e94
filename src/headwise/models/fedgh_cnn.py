"""FedGH CNN — Yi, Wang, Liu, Shi, Yu, ACM Multimedia 2023. https://arxiv.org/abs/2303.13137

Five networks of different sizes with representations of the same width, for clients with different hardware. CNN-4 has
800 units, as in the paper's table and its code; the 3.81 MB printed there would mean 753.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from .base import Model, Task, convolutions, dense
from .split import SplitModel

FEATURES = 500
CHANNELS = {1: 32, 2: 16, 3: 32, 4: 32, 5: 32}
UNITS = {1: 2000, 2: 2000, 3: 1000, 4: 800, 5: 500}


@dataclass(frozen=True)
class FedGHCNN(Model):
    """CNN-1 (the largest) to CNN-5 (the smallest), all with 500 features; for images of 16 x 16 and more."""

    variant: Literal[1, 2, 3, 4, 5] = 1
    "which of the five networks"

    def build(self, task: Task) -> SplitModel:
        layers, width = convolutions(self, task, 16, CHANNELS[self.variant])
        body = nn.Sequential(*layers, *dense(width, UNITS[self.variant], FEATURES))
        return SplitModel(body, nn.Linear(FEATURES, task.classes))
