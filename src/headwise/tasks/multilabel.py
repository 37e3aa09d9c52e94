"""Any number of labels for each sample."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from .base import Dense, Objective


class Multilabel(Objective):
    """Binary cross-entropy, the mean over labels; `weights` [2, labels] are those of zeros and of ones."""

    def __init__(self, labels: int, weights: Tensor | None = None, smoothing: float = 0.0) -> None:
        self.labels, self.weights, self.smoothing = labels, weights, smoothing

    def loss(self, scores: Tensor, y: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(scores, self._smoothed(y), self._weights(y))

    def divergence(self, p: Tensor, q: Tensor) -> Tensor:
        """KL(p || q) of each label, their mean."""
        ones = p.sigmoid() * (logsigmoid(p) - logsigmoid(q))
        return (ones + (-p).sigmoid() * (logsigmoid(-p) - logsigmoid(-q))).mean()

    def dense(self, y: Tensor) -> Dense:
        weights = self._weights(y)
        weights = torch.ones_like(y) if weights is None else weights
        return Dense(self._smoothed(y), weights / self.labels, "sigmoid")

    def counts(self, y: Tensor) -> Tensor:
        return y.sum(0).long()

    def guess(self, y: Tensor) -> Tensor:
        return ((y.sum(0) + 1) / (len(y) + 2)).logit()

    def said(self, scores: Tensor) -> Tensor:
        return scores

    def predict(self, scores: Tensor) -> Tensor:
        return (scores > 0).long()

    def probabilities(self, scores: Tensor) -> Tensor:
        return scores.sigmoid()

    def _smoothed(self, y: Tensor) -> Tensor:
        return y * (1 - self.smoothing) + self.smoothing / 2 if self.smoothing else y

    def _weights(self, y: Tensor) -> Tensor | None:
        return None if self.weights is None else torch.where(y > 0, self.weights[1], self.weights[0])
