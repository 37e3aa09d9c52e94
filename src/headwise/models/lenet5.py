"""LeNet-5 — LeCun, Bottou, Bengio, Haffner, Proceedings of the IEEE 1998. https://doi.org/10.1109/5.726791

With ReLU and max-pooling, as is usual today; the original has neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from torch import nn

from ..settings.fields import Range
from .base import Model, Task, convolutions, dense
from .split import SplitModel


@dataclass(frozen=True)
class LeNet5(Model):
    """A very small convolutional network, 62,006 parameters on CIFAR-10; for images of 16 x 16 and more."""

    width: Literal["classic", "wide"] = "classic"
    "classic: 6 and 16 channels, 84 features; wide: 64 and 64 channels, 64 features"
    head: Annotated[int, Range(1, 3)] = 1
    "how many of the three linear layers, counted from the last, are the head"

    def build(self, task: Task) -> SplitModel:
        first, second, features = (6, 16, 84) if self.width == "classic" else (64, 64, 64)
        layers, width = convolutions(self, task, first, second)
        linear = [*dense(width, 120, features), nn.Linear(features, task.classes)]
        start = len(linear) - (2 * self.head - 1)  # a ReLU between two
        head = linear[start:]
        return SplitModel(nn.Sequential(*layers, *linear[:start]), nn.Sequential(*head) if len(head) > 1 else head[0])
