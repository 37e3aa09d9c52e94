"""Plain SGD on one client's convolutional network without autograd, if it is a chain of simple layers.

It calls the same operators as autograd, whose overhead is a tenth of a small network's time. A linear layer's step is
fused into the product that computes its gradient, so the gradient is never stored.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ...tasks.base import Objective
from ...tasks.classification import CROSS_ENTROPY
from .base import Feed, Kernel
from .descent import Descent
from .layers import layers_of
from .stacked import slope_of

USUAL = re.compile("[CMR]*C[CMR]*F[LR]*L")
"""convolutions with max-pooling and ReLU, then flattening, then linear layers; by their first letters"""

aten = torch.ops.aten


class _Stage(ABC):
    """A layer, with what `forward` saves for `backward`."""

    learns = False

    @abstractmethod
    def forward(self, h: Tensor) -> Tensor:
        """The layer's output, which the next layer may overwrite unless `backward` needs it."""

    @abstractmethod
    def backward(self, slope: Tensor, needed: bool) -> Tensor:
        """Take the layer's step, if it learns; return the gradient of its input, if `needed`."""


class Chain(Kernel):
    """Trains a network batch by batch on the loss of its scores."""

    name: ClassVar[str] = "chain"

    def __init__(self, stages: list[_Stage], objective: Objective) -> None:
        self._stages, self._objective = stages, objective
        self._first = next(k for k, stage in enumerate(stages) if stage.learns)

    @staticmethod
    def of(model: nn.Module, descent: Descent, objective: Objective = CROSS_ENTROPY) -> Chain | None:
        """The kernel for this network; None unless it is a chain as in `USUAL`."""
        layers = layers_of(model, STAGES) or []
        weights = [p for layer in layers for p in layer.parameters()]
        once = len(set(map(id, weights))) == len(weights)
        if (
            not once
            or not all(map(_plain, layers))
            or not USUAL.fullmatch("".join(type(m).__name__[0] for m in layers))
        ):
            return None
        stages = [STAGES[type(layer)](layer, descent) for layer in layers]
        return Chain(stages, objective) if any(stage.learns for stage in stages) else None

    def train(self, feed: Feed) -> int:
        steps = 0
        for x, y in feed.batches():
            self.step(x, y)
            steps += 1
        return steps

    @torch.no_grad()
    def step(self, x: Tensor, y: Tensor) -> None:
        """One step of descent on this batch."""
        for stage in self._stages:
            x = stage.forward(x)
        shares, how = x.new_full((len(y), 1), 1 / len(y)), self._objective
        slope = slope_of(x, y.unsqueeze(1), shares) if how.usual else how.dense(y).slope(x, shares)
        for k in range(len(self._stages) - 1, self._first - 1, -1):
            slope = self._stages[k].backward(slope, k > self._first)


def _plain(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return not isinstance(layer, nn.MaxPool2d) or not layer.return_indices


class _ConvolutionStage(_Stage):
    def __init__(self, layer: nn.Conv2d, descent: Descent) -> None:
        self._w, self._b, self._descent = layer.weight, layer.bias, descent
        self._how: Any = layer.stride, layer.padding, layer.dilation
        self._groups, self.learns = layer.groups, descent.moves(layer.weight)
        self._sizes = None if layer.bias is None else [len(layer.bias)]

    def forward(self, h: Tensor) -> Tensor:
        self._h = h
        return aten.conv2d.default(h, self._w, self._b, *self._how, self._groups)

    def backward(self, slope: Tensor, needed: bool) -> Tensor:
        asked, still = [needed, self.learns, self.learns and self._b is not None], (False, (0, 0))
        below, w, b = aten.convolution_backward.default(
            slope, self._h, self._w, self._sizes, *self._how, *still, self._groups, asked
        )
        if self.learns:
            self._descent.move(self._w, w)
            if self._b is not None:
                self._descent.move(self._b, b)
        return below if needed else slope


class _LinearStage(_Stage):
    def __init__(self, layer: nn.Linear, descent: Descent) -> None:
        self._w, self._b, self._descent = layer.weight, layer.bias, descent
        self.learns = descent.moves(layer.weight)

    def forward(self, h: Tensor) -> Tensor:
        self._h = h
        return linear(h, self._w, self._b)

    def backward(self, slope: Tensor, needed: bool) -> Tensor:
        below = slope.mm(self._w) if needed else slope
        if self.learns:
            self._descent.move_by_product(self._w, slope.t(), self._h)
            if self._b is not None:
                self._descent.move(self._b, slope.sum(0))
        return below


class _PoolStage(_Stage):
    def __init__(self, layer: nn.MaxPool2d, descent: Descent) -> None:
        sizes = layer.kernel_size, layer.stride, layer.padding, layer.dilation
        self._how: Any = (*((s, s) if isinstance(s, int) else s for s in sizes), layer.ceil_mode)

    def forward(self, h: Tensor) -> Tensor:
        self._h = h
        found, self._at = aten.max_pool2d_with_indices.default(h, *self._how)
        return found

    def backward(self, slope: Tensor, needed: bool) -> Tensor:
        return aten.max_pool2d_with_indices_backward.default(slope, self._h, *self._how, self._at)


class _ReLUStage(_Stage):
    def __init__(self, layer: nn.ReLU, descent: Descent) -> None:
        pass

    def forward(self, h: Tensor) -> Tensor:
        self._h = h.relu_()  # no layer here needs its own output in backward
        return self._h

    def backward(self, slope: Tensor, needed: bool) -> Tensor:
        return aten.threshold_backward.default(slope, self._h, 0)


class _FlattenStage(_Stage):
    def __init__(self, layer: nn.Flatten, descent: Descent) -> None:
        pass

    def forward(self, h: Tensor) -> Tensor:
        self._shape = h.shape
        return h.flatten(1)

    def backward(self, slope: Tensor, needed: bool) -> Tensor:
        return slope.view(self._shape)


STAGES: dict[type[nn.Module], Any] = {
    nn.Conv2d: _ConvolutionStage,
    nn.Linear: _LinearStage,
    nn.MaxPool2d: _PoolStage,
    nn.ReLU: _ReLUStage,
    nn.Flatten: _FlattenStage,
}
