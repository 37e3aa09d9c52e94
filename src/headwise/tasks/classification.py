"""One of several classes for each sample, or for each pixel."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, log_softmax, one_hot

from .base import Dense, Objective


class Classification(Objective):
    """Cross-entropy; `weights` [classes] multiply the loss of a sample by that of its class, and are not normalised."""

    def __init__(self, classes: int, weights: Tensor | None = None, smoothing: float = 0.0) -> None:
        self.classes, self.weights, self.smoothing = classes, weights, smoothing
        self.usual = weights is None and not smoothing

    def loss(self, scores: Tensor, y: Tensor) -> Tensor:
        return weighted_cross_entropy(scores, y, self.weights, self.smoothing)

    def divergence(self, p: Tensor, q: Tensor) -> Tensor:
        """KL(p || q)."""
        return kl_div(log_softmax(q, 1), log_softmax(p, 1), reduction="batchmean", log_target=True)

    def dense(self, y: Tensor) -> Dense:
        targets = one_hot(y, self.classes).float() * (1 - self.smoothing) + self.smoothing / self.classes
        weights = torch.ones(len(y), device=y.device) if self.weights is None else self.weights[y]
        return Dense(targets, weights.unsqueeze(1), "softmax")

    def counts(self, y: Tensor) -> Tensor:
        return torch.bincount(y, minlength=self.classes)

    def guess(self, y: Tensor) -> Tensor:
        return frequencies(self.counts(y))

    def said(self, scores: Tensor) -> Tensor:
        return scores

    def predict(self, scores: Tensor) -> Tensor:
        return scores.argmax(1)

    def probabilities(self, scores: Tensor) -> Tensor:
        return scores.softmax(1)


CROSS_ENTROPY = Classification(0)
"""the loss alone, whatever the number of classes"""


def weighted_cross_entropy(scores: Tensor, y: Tensor, weights: Tensor | None, smoothing: float) -> Tensor:
    """The mean over samples or pixels; torch's own weights would cancel out in a batch of one class."""
    if weights is None:
        return cross_entropy(scores, y, label_smoothing=smoothing)
    return (cross_entropy(scores, y, label_smoothing=smoothing, reduction="none") * weights[y]).mean()


def frequencies(counts: Tensor) -> Tensor:
    """[classes]: the logarithm of how frequent each is, as if each had been seen once more."""
    return ((counts + 1) / (counts + 1).sum()).log()
