"""Training with autograd, batch by batch: any network and any loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import Tensor, nn

from .base import Feed, Kernel
from .descent import Descent


class PlainKernel(Kernel):
    """Descent on a loss, with an optional projection after each step."""

    name: ClassVar[str] = "plain"

    def __init__(
        self,
        models: Sequence[nn.Module],
        parts: Sequence[nn.Module],
        loss: Callable[[Tensor, Tensor], Tensor],
        descent: Descent,
        project: Callable[[], None] | None,
    ) -> None:
        self._models, self._parts, self._loss = models, parts, loss
        self._descent, self._project = descent, project

    def train(self, feed: Feed) -> int:
        """Parts without weights take no steps."""
        if not self._descent.weights:
            return 0
        steps = 0
        with learning(self._models, self._parts):
            for x, y in feed.batches():
                self._descent.step(self._loss(x, y))
                if self._project is not None:
                    with torch.no_grad():
                        self._project()
                steps += 1
        return steps


@contextmanager
def learning(models: Sequence[nn.Module], parts: Sequence[nn.Module]) -> Iterator[None]:
    """Only `parts` get gradients. All modules are in evaluation mode, so that running statistics don't change."""
    for m in models:
        m.eval().requires_grad_(False)
    for part in parts:
        part.requires_grad_(True)
    try:
        yield
    finally:
        for m in models:
            m.eval().requires_grad_(True)
