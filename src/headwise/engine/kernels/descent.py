"""Stochastic gradient descent on modules, in as few operations per step as possible.

The arithmetic is that of `torch.optim.SGD`, `Adam` and `AdamW`, whose import would cost every worker a second.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .base import Adam


class Descent:
    """A fresh optimiser: momentum starts with the first gradient, and weights that the loss does not reach stay."""

    def __init__(
        self,
        weights: Sequence[Tensor],
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
        clip: float | None,
        adam: Adam | None = None,
    ) -> None:
        self.weights, self.lr, self.momentum = list(weights), lr, momentum
        self.weight_decay, self.clip, self.adam = weight_decay, clip, adam
        self._moving = {id(w) for w in weights}
        self._velocity: dict[int, Tensor] = {}
        self._moments: dict[int, tuple[int, Tensor, Tensor]] = {}
        """of Adam: steps so far, and the running means of the gradient and of its square"""

    def step(self, loss: Tensor) -> None:
        """Update all weights that the loss reaches."""
        slopes = torch.autograd.grad(loss, self.weights, allow_unused=True)
        reached = [(w, g) for w, g in zip(self.weights, slopes, strict=True) if g is not None]
        with torch.no_grad():
            for (w, _), g in zip(reached, clipped([g for _, g in reached], self.clip), strict=True):
                self.move(w, g)

    def moves(self, weight: Tensor) -> bool:
        return id(weight) in self._moving

    def move(self, weight: Tensor, gradient: Tensor) -> None:
        """w <- w - lr v, where v <- momentum v + (gradient + weight_decay w); or a step of Adam."""
        if self.adam is not None:
            self._move_by_moments(weight, gradient, self.adam)
            return
        if self.weight_decay:
            gradient = gradient.add(weight, alpha=self.weight_decay)
        if self.momentum:
            before = self._velocity.get(id(weight))
            gradient = gradient.clone() if before is None else before.mul_(self.momentum).add_(gradient)
            self._velocity[id(weight)] = gradient
        weight.add_(gradient, alpha=-self.lr)

    def move_by_product(self, weight: Tensor, left: Tensor, right: Tensor) -> None:
        """The same for the gradient `left @ right`, which is not stored unless momentum or weight decay needs it."""
        if self.weight_decay or self.momentum or self.adam is not None:
            self.move(weight, left.mm(right))
        else:
            weight.addmm_(left, right, alpha=-self.lr)

    def _move_by_moments(self, weight: Tensor, gradient: Tensor, adam: Adam) -> None:
        """w <- w - lr m' / (sqrt(v') + eps), where m' and v' are the running means without their bias to zero."""
        if self.weight_decay and adam.decoupled:
            weight.mul_(1 - self.lr * self.weight_decay)
        elif self.weight_decay:
            gradient = gradient.add(weight, alpha=self.weight_decay)
        known = self._moments.get(id(weight))
        steps, m, v = known or (0, torch.zeros_like(weight), torch.zeros_like(weight))
        m.lerp_(gradient, 1 - adam.beta1)
        v.mul_(adam.beta2).addcmul_(gradient, gradient, value=1 - adam.beta2)
        self._moments[id(weight)] = steps + 1, m, v
        first, second = (1 - beta ** (steps + 1) for beta in (adam.beta1, adam.beta2))
        weight.addcdiv_(m, v.sqrt().div_(second**0.5).add_(adam.eps), value=-self.lr / first)


def clipped(gradients: Sequence[Tensor], clip: float | None) -> Sequence[Tensor]:
    """The gradients of one step, scaled down together if their joint norm is above `clip`."""
    if clip is None or not gradients:
        return gradients
    norm = torch.stack([g.norm() for g in gradients]).norm()
    shrink = (clip / (norm + 1e-6)).clamp(max=1.0)
    return [g * shrink for g in gradients]
