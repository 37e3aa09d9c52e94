"""Stochastic gradient descent on modules, in as few operations per step as possible.

The arithmetic is that of `torch.optim.SGD`, whose import would cost every worker a second.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Descent:
    """A fresh optimiser: momentum starts with the first gradient, and weights that the loss does not reach stay."""

    def __init__(
        self, weights: Sequence[Tensor], *, lr: float, momentum: float, weight_decay: float, clip: float | None
    ) -> None:
        self.weights, self.lr, self.momentum = list(weights), lr, momentum
        self.weight_decay, self.clip = weight_decay, clip
        self._moving = {id(w) for w in weights}
        self._velocity: dict[int, Tensor] = {}

    def step(self, loss: Tensor) -> None:
        """Update all weights that the loss reaches."""
        slopes = torch.autograd.grad(loss, self.weights, allow_unused=True)
        reached = [(w, g) for w, g in zip(self.weights, slopes, strict=True) if g is not None]
        with torch.no_grad():
            if self.clip is not None:
                norm = torch.stack([g.norm() for _, g in reached]).norm()
                shrink = (self.clip / (norm + 1e-6)).clamp(max=1.0)
                reached = [(w, g * shrink) for w, g in reached]
            for w, g in reached:
                self.move(w, g)

    def moves(self, weight: Tensor) -> bool:
        return id(weight) in self._moving

    def move(self, weight: Tensor, gradient: Tensor) -> None:
        """w <- w - lr v, where v <- momentum v + (gradient + weight_decay w)."""
        if self.weight_decay:
            gradient = gradient.add(weight, alpha=self.weight_decay)
        if self.momentum:
            before = self._velocity.get(id(weight))
            gradient = gradient.clone() if before is None else before.mul_(self.momentum).add_(gradient)
            self._velocity[id(weight)] = gradient
        weight.add_(gradient, alpha=-self.lr)

    def move_by_product(self, weight: Tensor, left: Tensor, right: Tensor) -> None:
        """The same for the gradient `left @ right`, which is not stored unless momentum or weight decay needs it."""
        if self.weight_decay or self.momentum:
            self.move(weight, left.mm(right))
        else:
            weight.addmm_(left, right, alpha=-self.lr)
