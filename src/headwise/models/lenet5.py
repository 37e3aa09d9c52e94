"""LeNet-5 — LeCun, Bottou, Bengio, Haffner, Proceedings of the IEEE 1998. https://doi.org/10.1109/5.726791

With ReLU and max-pooling, as is usual today; the original has neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from .base import Model, Task, convolutions, dense
from .split import SplitModel


@dataclass(frozen=True)
class LeNet5(Model):
    """A very small convolutional network, 62,006 parameters on CIFAR-10; for images of 16 x 16 and more."""

    width: Literal["classic", "wide"] = "classic"
    "classic: 6 and 16 channels, 84 features; wide: 64 and 64 channels, 64 features"

    def build(self, task: Task) -> SplitModel:
        first, second, features = (6, 16, 84) if self.width == "classic" else (64, 64, 64)
        layers, width = convolutions(self, task, first, second)
        body = nn.Sequential(*layers, *dense(width, 120, features))
        return SplitModel(body, nn.Linear(features, task.classes))
