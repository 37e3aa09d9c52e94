"""The native kernels as the engine sees them: a kernel that trains, and a function that predicts."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Sequence
from ctypes import Array, addressof, byref
from typing import ClassVar

import torch
from torch import Tensor, nn

from ....memory import address
from ....tasks.base import Objective
from ....tasks.classification import CROSS_ENTROPY
from ..base import Feed, Kernel
from ..base import Rates as Settings
from .checking import native
from .library import Library
from .program import (
    LINKS,
    NativeGoal,
    NativeLayer,
    NativePhase,
    NativeRates,
    described,
    flops_of,
    image_behind,
    plain_layers,
    weights_of,
)

USUAL = re.compile("(R*[CMA][CMAR]*F+|F*)(L[LR]*)?")
"""convolutions with pooling and ReLU, then flattening, then linear layers; by their first letters"""
ROWS = 32
"""samples per prediction pass; bits do not depend on it"""


class Native(Kernel):
    """Trains a network on the objective of its outputs, all steps of a phase in one call."""

    name: ClassVar[str] = "native"

    def __init__(
        self, library: Library, layers: Sequence[nn.Module], moving: set[int], rates: Settings, objective: Objective
    ) -> None:
        self._library, self._layers, self._moving, self._objective = library, layers, moving, objective
        self._rates = NativeRates(rates.lr, rates.momentum, rates.weight_decay, rates.clip or 0.0)

    @staticmethod
    def of(
        network: nn.Module, parts: Sequence[nn.Module], rates: Settings, objective: Objective = CROSS_ENTROPY
    ) -> Native | None:
        """The kernel for this network; None unless it is a chain, some of it learns, and there is a library."""
        layers = _chain(network)
        if layers is None or not isinstance(layers[-1], nn.Linear):
            return None
        weights, library = {*map(id, weights_of(layers))}, native().library
        moving = weights if network in parts else {id(p) for part in parts for p in part.parameters()}
        if library is None or moving.isdisjoint(weights):
            return None
        return Native(library, layers, moving, rates, objective)

    def train(self, feed: Feed) -> int:
        """All steps in one call; weights are updated in place."""
        x, y, batches = feed.whole()
        steps, size = batches.shape
        if steps:
            (x, layers), batches = _laid_out(self._layers, x, self._moving), batches.contiguous()
            goal, tensors = _goal(self._objective, y, len(x), layers[-1].oc)
            told = *map(addressof, (layers, self._rates, goal)), address(x), address(batches), len(x), steps
            phase = NativePhase(*told, len(layers), size)
            memory = _memory(self._library.bytes(layers, len(layers), size, byref(self._rates)))
            self._library.train(byref(phase), 1, memory)
            del tensors  # the goal refers to them
            if phase.bad >= 0:
                raise IndexError(f"sample {phase.bad} of {len(x)} does not exist, or its label is not a class")
            self.flops = flops_of(layers) * int((batches >= 0).sum())
        return steps


def _goal(objective: Objective, y: Tensor, samples: int, outputs: int) -> tuple[NativeGoal, tuple[Tensor, ...]]:
    """What the outputs should be, and the tensors that it refers to, which must live as long."""
    if objective.is_plain:
        y = y.long().contiguous()
        return NativeGoal(classes=address(y)), (y,)
    dense = objective.dense(y)
    targets, weights = dense.targets.float().contiguous(), dense.weights.float().contiguous()
    if targets.shape != (samples, outputs):
        raise ValueError(f"targets are {tuple(targets.shape)}, but must be {(samples, outputs)}")
    goal = NativeGoal(LINKS.index(dense.link), weights.shape[1], None, address(targets), address(weights))
    return goal, (targets, weights)


def predicted(network: nn.Module, x: Tensor) -> Tensor | None:
    """The network's output for all rows of `x`; None unless it is a chain and there is a library."""
    layers = None if x.dtype is not torch.float32 or x.device.type != "cpu" else _chain(network)
    library = native().library if layers else None
    if layers is None or library is None:
        return None
    x, told = _laid_out(layers, x, set())
    out, rows = x.new_empty(len(x), math.prod(image_behind(told[-1]))), max(1, min(ROWS, len(x)))
    memory = _memory(library.bytes(told, len(told), rows, None))
    library.predict(told, len(told), address(x), len(x), rows, out.data_ptr(), memory)
    return out


def _chain(network: nn.Module) -> list[nn.Module] | None:
    layers = plain_layers(network)
    return layers if layers and USUAL.fullmatch("".join(type(m).__name__[0] for m in layers)) else None


def _laid_out(layers: Sequence[nn.Module], x: Tensor, moving: set[int]) -> tuple[Tensor, Array[NativeLayer]]:
    """The samples as the kernels read them (images channels-last), and the layers for their shape."""
    if x.dtype is not torch.float32 or x.device.type != "cpu":
        raise TypeError(f"samples are {x.dtype} on {x.device}, but the network's weights are float32 on the CPU")
    told = described(layers, tuple(x.shape[1:]), lambda w: id(w) in moving)
    x = x.permute(0, 2, 3, 1) if x.dim() == 4 and isinstance(layers[0], _IMAGES) else x
    return x.contiguous(), (NativeLayer * len(told))(*told)


_IMAGES = (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d, nn.ReLU)
_own = threading.local()


def _memory(size: int) -> int:
    """The address of `size` bytes for this thread, valid until its next call."""
    if size < 0:
        raise ValueError("a chain has too many layers")
    known: Tensor | None = getattr(_own, "memory", None)
    if known is None or known.numel() < size:
        known = _own.memory = torch.empty(size, dtype=torch.uint8)
    return known.data_ptr()
