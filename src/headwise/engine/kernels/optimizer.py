"""A client's optimizer: what one step does to a weight. `headwise_train` in chain.c takes the same step natively.

The arithmetic is that of `torch.optim.SGD`, `Adam` and `AdamW`, whose import would cost every worker a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import Structure, c_float, c_int32
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from ...settings.options import Train


class Adam(NamedTuple):
    """The settings of Adam, or of AdamW, where weight decay is not part of the gradient."""

    beta1: float
    beta2: float
    eps: float
    decoupled: bool


class Rates(NamedTuple):
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    """maximum norm of a step's gradient"""
    adam: Adam | None = None
    """none: SGD"""

    def native(self, pull: float) -> NativeRates:
        """As the native kernels take them; `pull` is that of the terms."""
        lr, momentum, decay, clip, adam = self
        if adam is None:
            return NativeRates(lr, momentum, decay, clip or 0.0, pull)
        kind = 2 if adam.decoupled else 1
        return NativeRates(lr, momentum, decay, clip or 0.0, pull, adam.beta1, adam.beta2, adam.eps, kind)


class NativeRates(Structure):
    """`Rates` of chain.h."""

    _fields_ = (
        *((name, c_float) for name in ("lr", "momentum", "decay", "clip", "pull", "beta1", "beta2", "eps")),
        ("adam", c_int32),
    )


def rates_of(settings: Train, lr: float, clip: float | None = None) -> Rates:
    """The experiment's optimizer; a method's own `clip` comes before the experiment's."""
    beta1, beta2 = settings.betas
    name = settings.optimizer
    adam = None if name == "sgd" else Adam(beta1, beta2, settings.eps, decoupled=name == "adamw")
    return Rates(lr, settings.momentum, settings.weight_decay, settings.clip if clip is None else clip, adam)


class Terms(NamedTuple):
    """What is added to each gradient, by the id of its weight w: pull (w - anchor) + shift."""

    pull: float = 0.0
    anchors: Mapping[int, Tensor] = MappingProxyType({})
    shifts: Mapping[int, Tensor] = MappingProxyType({})

    def add(self, weight: Tensor, gradient: Tensor | None) -> Tensor | None:
        """Add the terms; a weight that the loss does not reach moves by its term alone."""
        anchor = self.anchors.get(id(weight))
        shift = self.shifts.get(id(weight))
        if anchor is None and shift is None:
            return gradient
        total = torch.zeros_like(weight) if gradient is None else gradient
        total = total if anchor is None else total.add(weight - anchor, alpha=self.pull)
        return total if shift is None else total + shift


class Optimizer:
    """Starts fresh: momentum with the first gradient, and weights that the loss does not reach stay."""

    def __init__(self, weights: Sequence[Tensor], rates: Rates, terms: Terms | None = None) -> None:
        self.weights = list(weights)
        self.rates = rates
        self._terms = terms or Terms()
        self._velocity: dict[int, Tensor] = {}
        self._moments: dict[int, tuple[int, Tensor, Tensor]] = {}
        """of Adam: steps so far, and the running means of the gradient and of its square"""

    def step(self, loss: Tensor) -> None:
        self.step_along(torch.autograd.grad(loss, self.weights, allow_unused=True))

    @torch.no_grad()
    def step_along(self, gradients: Sequence[Tensor | None]) -> None:
        """Move all weights that have a gradient, after clipping their joint norm."""
        terms = [(k, w, self._terms.add(w, g)) for k, (w, g) in enumerate(zip(self.weights, gradients, strict=True))]
        reached = [(k, w, g) for k, w, g in terms if g is not None]
        for (k, w, _), g in zip(reached, _clip([g for _, _, g in reached], self.rates.clip), strict=True):
            self._move(k, w, g, w)

    @torch.no_grad()
    def step_from(self, weights: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Tensor]:
        """The result of a step from these weights, which replace its own and stay unchanged."""
        steps = _clip(gradients, self.rates.clip)
        moved = [torch.empty_like(w) for w in weights]
        for k, (w, g, to) in enumerate(zip(weights, steps, moved, strict=True)):
            self._move(k, w.detach(), g, to)
        return moved

    def _move(self, place: int, weight: Tensor, gradient: Tensor, to: Tensor) -> None:
        """to <- w - lr v, where v <- momentum v + (gradient + weight_decay w); or a step of Adam."""
        lr, momentum, decay, _, adam = self.rates
        if adam is not None:
            self._move_by_moments(place, weight if to is weight else to.copy_(weight), gradient, adam)
            return
        if decay:
            gradient = gradient.add(weight, alpha=decay)
        if momentum:
            before = self._velocity.get(place)
            gradient = gradient.clone() if before is None else before.mul_(momentum).add_(gradient)
            self._velocity[place] = gradient
        torch.add(weight, gradient, alpha=-lr, out=to)

    def _move_by_moments(self, place: int, weight: Tensor, gradient: Tensor, adam: Adam) -> None:
        """w <- w - lr m' / (sqrt(v') + eps), where m' and v' are the running means without their bias to zero."""
        lr, _, decay, _, _ = self.rates
        if decay and adam.decoupled:
            weight.mul_(1 - lr * decay)
        elif decay:
            gradient = gradient.add(weight, alpha=decay)
        known = self._moments.get(place)
        steps, m, v = known or (0, torch.zeros_like(weight), torch.zeros_like(weight))
        m.lerp_(gradient, 1 - adam.beta1)
        v.mul_(adam.beta2).addcmul_(gradient, gradient, value=1 - adam.beta2)
        self._moments[place] = steps + 1, m, v
        first, second = (1 - beta ** (steps + 1) for beta in (adam.beta1, adam.beta2))
        weight.addcdiv_(m, v.sqrt().div_(second**0.5).add_(adam.eps), value=-lr / first)


def _clip(gradients: Sequence[Tensor], clip: float | None) -> Sequence[Tensor]:
    """The gradients of one step, scaled down together if their joint norm is above `clip`."""
    if clip is None or not gradients:
        return gradients
    norm = torch.stack([g.norm() for g in gradients]).norm()
    shrink = (clip / (norm + 1e-6)).clamp(max=1.0)
    return [g * shrink for g in gradients]
