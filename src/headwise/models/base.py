"""The contract of a model family, and the parts that families share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from itertools import pairwise
from typing import ClassVar

from torch import nn

from ..errors import ConfigError
from ..settings.fields import Checked
from ..tasks.base import Task as Task
from .split import SplitModel


class Model(Checked, ABC):
    """A family of networks: a frozen dataclass whose fields are its options."""

    kind: ClassVar[str] = "model"

    @abstractmethod
    def build(self, task: Task) -> SplitModel:
        """A freshly initialized network for this task."""


def image(model: Model, task: Task, least: int = 1) -> tuple[int, int, int]:
    """Channels, height and width of the task's images; raises if a side has fewer than `least` pixels."""
    if len(task.shape) != 3 or min(task.shape[1:]) < least:
        raise misfit(model, task, f"images (channels, height, width) of at least {least} x {least} pixels")
    channels, height, width = task.shape
    return channels, height, width


def count_inputs(model: Model, task: Task) -> int:
    """The number of values in one sample; raises for texts, as token numbers are not quantities."""
    if task.vocabulary or not task.shape:
        raise misfit(model, task, "images or features but no texts")
    return math.prod(task.shape)


def misfit(model: Model, task: Task, allowed: str) -> ConfigError:
    given = f"shape {task.shape} and vocabulary {task.vocabulary}"
    return ConfigError(f"model is {type(model).__name__}, which takes {allowed}, not {given}.")


def convolutions(model: Model, task: Task, first: int, second: int) -> tuple[nn.Sequential, int]:
    """Two blocks of 5x5 convolution without padding, ReLU and 2x2 max-pooling, flattened; and their output width."""
    channels, height, width = image(model, task, least=16)  # 15 pixels would leave nothing for the second pooling
    layers = nn.Sequential(*_block(channels, first), *_block(first, second), nn.Flatten())
    return layers, second * _side_after(_side_after(height)) * _side_after(_side_after(width))


def dense(*widths: int) -> list[nn.Module]:
    """Fully connected layers of these widths, from input to output, each followed by ReLU."""
    return [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]


def _block(channels: int, out: int) -> list[nn.Module]:
    # ReLU commutes with max-pooling, gradients included: after it, there are a quarter of the pixels
    return [nn.Conv2d(channels, out, 5), nn.MaxPool2d(2), nn.ReLU()]


def _side_after(pixels: int) -> int:
    """Of a block's output."""
    return (pixels - 4) // 2
