"""One of several classes for each pixel."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax

from .base import Dense, Objective
from .classification import frequencies, weighted_cross_entropy


class Segmentation(Objective):
    """Cross-entropy, the mean over all pixels; scores are [n, classes, height, width]."""

    flat: ClassVar[bool] = False

    def __init__(self, classes: int, weights: Tensor | None = None, smoothing: float = 0.0) -> None:
        self.classes, self.weights, self.smoothing = classes, weights, smoothing

    def loss(self, scores: Tensor, y: Tensor) -> Tensor:
        return weighted_cross_entropy(scores, y, self.weights, self.smoothing)

    def divergence(self, p: Tensor, q: Tensor) -> Tensor:
        """KL(p || q), the mean over all pixels."""
        each = kl_div(log_softmax(q, 1), log_softmax(p, 1), reduction="none", log_target=True)
        return each.sum(1).mean()

    def dense(self, y: Tensor) -> Dense:
        raise TypeError("pixels have no dense form")

    def counts(self, y: Tensor) -> Tensor:
        return torch.bincount(y.flatten(), minlength=self.classes)

    def guess(self, y: Tensor) -> Tensor:
        return frequencies(self.counts(y))[:, None, None].expand(-1, *y.shape[1:])

    def said(self, scores: Tensor) -> Tensor:
        return scores

    def predict(self, scores: Tensor) -> Tensor:
        return scores.argmax(1)

    def probabilities(self, scores: Tensor) -> Tensor:
        return scores.softmax(1)
