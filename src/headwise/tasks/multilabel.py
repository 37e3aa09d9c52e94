"""Any number of labels for each sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .base import Dense, Objective, Task, TaskKind, even_weights

if TYPE_CHECKING:
    from torch import Tensor


class Multilabel(TaskKind):
    name = "multilabel"
    noun = "label"
    counted = "labels"
    default_metric = "accuracy"
    target_figure = "share of samples"

    def objective(
        self, task: Task, weights: Tensor | None = None, smoothing: float = 0.0, device: str = "cpu"
    ) -> Objective:
        import torch

        both = None if weights is None else torch.stack([torch.ones_like(weights), weights])
        return BinaryCrossEntropy(task.classes, both, smoothing)

    def balance(self, task: Task, y: Tensor, smoothing: float) -> Objective:
        """The zeros and the ones of each label count the same."""
        import torch

        counts = y.sum(0).long()
        return BinaryCrossEntropy(task.classes, even_weights(torch.stack([len(y) - counts, counts])), smoothing)

    def strata(self, y: Any, names: tuple[str, ...]) -> tuple[Any, tuple[str, ...]]:
        """The first label that a sample has."""
        import numpy as np

        has_label = y > 0
        return np.where(has_label.any(1), has_label.argmax(1), len(names)), (*names, "no label")

    def describe_targets(self, y: Any, outputs: int) -> list[str]:
        return [f"{share:.1%}" for share in y.mean(0)]

    def decode(self, scores: Any, classes: Any) -> Any:
        return (scores > 0).astype("int64")


class BinaryCrossEntropy(Objective):
    """Binary cross-entropy, the mean over labels; `weights` [2, labels] are those of zeros and of ones."""

    def __init__(self, labels: int, weights: Tensor | None = None, smoothing: float = 0.0) -> None:
        self.labels = labels
        self.weights = weights
        self.smoothing = smoothing

    def loss(self, scores: Tensor, y: Tensor) -> Tensor:
        from torch.nn.functional import binary_cross_entropy_with_logits

        return binary_cross_entropy_with_logits(scores, self._smooth(y.to(scores.dtype)), self._weights(y))

    def losses(self, scores: Tensor, y: Tensor) -> Tensor:
        from torch.nn.functional import binary_cross_entropy_with_logits

        targets = self._smooth(y.to(scores.dtype))
        return binary_cross_entropy_with_logits(scores, targets, self._weights(y), reduction="none").mean(1)

    def divergence(self, p: Tensor, q: Tensor) -> Tensor:
        """KL(p || q) of each label, their mean."""
        from torch.nn.functional import logsigmoid

        ones = p.sigmoid() * (logsigmoid(p) - logsigmoid(q))
        return (ones + (-p).sigmoid() * (logsigmoid(-p) - logsigmoid(-q))).mean()

    def dense(self, y: Tensor) -> Dense:
        weights = self._weights(y)
        weights = y.new_ones(y.shape) if weights is None else weights
        return Dense(self._smooth(y), weights / self.labels, "sigmoid")

    def counts(self, y: Tensor) -> Tensor:
        return y.sum(0).long()

    def guess(self, y: Tensor) -> Tensor:
        return ((y.sum(0) + 1) / (len(y) + 2)).logit()

    def probabilities(self, scores: Tensor) -> Tensor:
        return scores.sigmoid()

    def _smooth(self, y: Tensor) -> Tensor:
        return y * (1 - self.smoothing) + self.smoothing / 2 if self.smoothing else y

    def _weights(self, y: Tensor) -> Tensor | None:
        return None if self.weights is None else self.weights[1].where(y > 0, self.weights[0])
