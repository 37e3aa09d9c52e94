"""One of several classes for each pixel."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.nn.functional import kl_div, log_softmax

from .base import Dense
from .classification import Classification, frequencies


class Segmentation(Classification):
    """Cross-entropy, the mean over all pixels; scores are [n, classes, height, width]."""

    flat: ClassVar[bool] = False

    def __init__(self, classes: int, weights: Tensor | None = None, smoothing: float = 0.0) -> None:
        super().__init__(classes, weights, smoothing)
        self.usual = False

    def divergence(self, p: Tensor, q: Tensor) -> Tensor:
        """KL(p || q), the mean over all pixels."""
        each = kl_div(log_softmax(q, 1), log_softmax(p, 1), reduction="none", log_target=True)
        return each.sum(1).mean()

    def dense(self, y: Tensor) -> Dense:
        raise TypeError("pixels have no dense form")

    def counts(self, y: Tensor) -> Tensor:
        return super().counts(y.flatten())

    def guess(self, y: Tensor) -> Tensor:
        return frequencies(self.counts(y))[:, None, None].expand(-1, *y.shape[1:])
