"""FCN — Long, Shelhamer, Darrell, CVPR 2015. https://arxiv.org/abs/1411.4038

A small one: instead of pooling and enlarging again, its convolutions are dilated (Yu, Koltun, ICLR 2016,
https://arxiv.org/abs/1511.07122), so that images of any size keep it from end to end.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

from torch import nn

from ..settings.fields import Range
from ..tasks.registry import kind_of
from .base import Model, Task, image, misfit
from .split import SplitModel


@dataclass(frozen=True)
class FCN(Model):
    """Dilated 3x3 convolutions and a head that is a 1x1 convolution: a class for each pixel of an image."""

    channels: Annotated[int, Range(1, 1024)] = 16
    "features of each pixel"
    layers: Annotated[int, Range(1, 8)] = 4
    "convolutions; each looks twice as far as the one before"

    def build(self, task: Task) -> SplitModel:
        if not kind_of(task).per_pixel:
            raise misfit(self, task, "images whose pixels have classes (segmentation)")
        widths = [image(self, task)[0], *[self.channels] * self.layers]
        body: list[nn.Module] = []
        for k, (before, after) in enumerate(pairwise(widths)):
            body += [_initialize(nn.Conv2d(before, after, 3, padding=2**k, dilation=2**k)), nn.ReLU()]
        return SplitModel(nn.Sequential(*body), nn.Conv2d(self.channels, task.classes, 1))


def _initialize(layer: nn.Conv2d) -> nn.Conv2d:
    """With weights (He et al., ICCV 2015) that keep the size of signals: torch's own would let them fade away."""
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return layer
