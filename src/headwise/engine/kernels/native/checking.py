"""Checks, once before they are used, that the native kernels compute what torch computes."""

from __future__ import annotations

import logging
import os
from ctypes import addressof, byref
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .library import LIMIT, Found, Library, find
from .program import NativeGoal, NativeLayer, NativePhase, NativeRates, described

CLOSE = 1e-5
LR = 0.1


def native() -> Found:
    """The library, if it agrees with torch."""
    return _checked(os.environ.get(LIMIT, ""))


@cache
def _checked(limit: str) -> Found:
    found = find(limit)
    if found.library is None or (off := difference(found.library)) <= CLOSE:
        return found
    why = f"its {found.library.build} kernels are off by {off:.1g} from torch's"
    logging.getLogger("headwise").warning(f"the native library is not used: {why}.")
    return Found(None, why)


def difference(library: Library) -> float:
    """The largest difference to autograd's weights after two training steps of a network with every kind of layer."""
    ours, theirs = _network(), _network()
    x, y, batches = _waves(5, 2, 9, 8), torch.arange(5) % 3, torch.tensor([[3, 0, 4], [1, 2, -1]])
    made = described(ours, (2, 9, 8), lambda _: True)
    layers, rates, images = (NativeLayer * len(made))(*made), NativeRates(LR), x.permute(0, 2, 3, 1).contiguous()
    memory = torch.empty(library.bytes(layers, len(layers), 3, byref(rates)), dtype=torch.uint8)
    goal, numbers = NativeGoal(classes=y.data_ptr()), (images.data_ptr(), batches.data_ptr(), 5, 2)
    phase = *map(addressof, (layers, rates, goal)), *numbers, len(layers), 3
    library.train(byref(NativePhase(*phase)), 1, memory.data_ptr())
    with torch.enable_grad():
        for i in (batches[0], batches[1, :2]):
            loss = cross_entropy(nn.Sequential(*theirs)(x[i]), y[i])
            weights = [p for layer in theirs for p in layer.parameters()]
            for p, g in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                p.data.sub_(g, alpha=LR)
    pairs = zip(ours, theirs, strict=True)
    gaps = [(a - b).abs().max() for m, n in pairs for a, b in zip(m.parameters(), n.parameters(), strict=True)]
    worst = torch.stack(gaps).max().item()
    return worst if worst == worst else float("inf")


class _Convolution(nn.Conv2d):
    def reset_parameters(self) -> None:
        """Nothing is drawn."""


class _DrawnLinear(nn.Linear):
    def reset_parameters(self) -> None:
        """Nothing is drawn."""


def _network() -> list[nn.Module]:
    """The same network at every call, without using a random generator."""
    made = [
        *(_Convolution(2, 5, (3, 2), padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.AvgPool2d(2, 1)),
        *(_Convolution(5, 18, 2, stride=2), nn.Flatten(), _DrawnLinear(18, 17), nn.ReLU()),
        _DrawnLinear(17, 3),
    ]
    with torch.no_grad():
        for layer in made:
            for p in layer.parameters():
                p.copy_(_waves(*p.shape) / 3)
    return made


def _waves(*shape: int) -> Tensor:
    return torch.arange(1, 1 + torch.Size(shape).numel(), dtype=torch.float32).sin().view(shape)
