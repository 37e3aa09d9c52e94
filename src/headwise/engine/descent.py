"""Stochastic gradient descent on modules, in as few operations per step as possible.

The arithmetic is that of `torch.optim.SGD`, which would import a second of machinery into every worker.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Descent:
    """A fresh optimiser: momentum starts at the first gradient, and weights that a loss does not reach stay."""

    def __init__(
        self, weights: Sequence[Tensor], *, lr: float, momentum: float, weight_decay: float, clip: float | None
    ) -> None:
        self.weights, self.lr, self.momentum = list(weights), lr, momentum
        self.weight_decay, self.clip = weight_decay, clip
        self._velocity: dict[int, Tensor] = {}

    def step(self, loss: Tensor) -> None:
        """w <- w - lr v, where v <- momentum v + (gradient + weight_decay w)."""
        slopes = torch.autograd.grad(loss, self.weights, allow_unused=True)
        reached = [i for i, g in enumerate(slopes) if g is not None]
        weights, steps = [self.weights[i] for i in reached], [g for g in slopes if g is not None]
        with torch.no_grad():
            if self.clip is not None:
                norm = torch.stack([g.norm() for g in steps]).norm()
                shrink = (self.clip / (norm + 1e-6)).clamp(max=1.0)
                steps = [g * shrink for g in steps]
            if self.weight_decay:
                steps = [g.add(w, alpha=self.weight_decay) for w, g in zip(weights, steps, strict=True)]
            if self.momentum:
                steps = [self._moved(i, g) for i, g in zip(reached, steps, strict=True)]
            for w, g in zip(weights, steps, strict=True):
                w.add_(g, alpha=-self.lr)

    def _moved(self, i: int, slope: Tensor) -> Tensor:
        before = self._velocity.get(i)
        self._velocity[i] = slope.clone() if before is None else before.mul_(self.momentum).add_(slope)
        return self._velocity[i]
