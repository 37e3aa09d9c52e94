"""ResNet-18 — He, Zhang, Ren, Sun, CVPR 2016. https://arxiv.org/abs/1512.03385

Layout and initialization are torchvision's. Group normalization (32 groups) has no running statistics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from torch import Tensor, nn

from ..settings.fields import Range
from .base import Model, Task, dense, image
from .split import SplitModel

Norm = Callable[[int], nn.Module]
FEATURES = 512


@dataclass(frozen=True)
class ResNet18(Model):
    """Eight residual blocks, 512 features, one linear head; for images of any size."""

    stem: Literal["imagenet", "cifar"] = "imagenet"
    "imagenet: 7x7 convolution of stride 2 and max-pooling; cifar: 3x3 convolution, 15 times the work"
    representation: Annotated[int, Range(0, 65_536)] = 0
    "units of one more layer with ReLU before the head (FedGH: 500), 0 for none"
    norm: Literal["batch", "group"] = "batch"
    "normalization after each convolution"

    def build(self, task: Task) -> SplitModel:
        channels, _, _ = image(self, task)
        norm: Norm = nn.BatchNorm2d if self.norm == "batch" else _groups
        widths = [FEATURES, self.representation] if self.representation else [FEATURES]
        convolutions = [*_stem(self.stem, channels, norm), *_blocks(norm)]
        body = nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), *dense(*widths))
        model = SplitModel(body, nn.Linear(widths[-1], task.classes))
        for layer in body.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        return model


class Block(nn.Module):
    """Two 3x3 convolutions, added to the input, which is projected if the shape changes."""

    def __init__(self, a: int, b: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.residual = nn.Sequential(_conv(a, b, 3, stride), norm(b), nn.ReLU(), _conv(b, b, 3), norm(b))
        changes = a != b or stride != 1
        self.shortcut = nn.Sequential(_conv(a, b, 1, stride), norm(b)) if changes else nn.Identity()
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.residual(x) + self.shortcut(x))


def _stem(kind: str, channels: int, norm: Norm) -> list[nn.Module]:
    if kind == "cifar":
        return [_conv(channels, 64, 3), norm(64), nn.ReLU()]
    return [_conv(channels, 64, 7, 2), norm(64), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)]


def _blocks(norm: Norm) -> list[nn.Module]:
    stages = ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, FEATURES, 2))
    return [block for a, b, stride in stages for block in (Block(a, b, stride, norm), Block(b, b, 1, norm))]


def _groups(channels: int) -> nn.Module:
    return nn.GroupNorm(32, channels)


def _conv(a: int, b: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(a, b, size, stride, padding=size // 2, bias=False)  # the norm that follows has a bias
