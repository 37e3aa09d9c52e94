"""One of several classes for each sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .base import Dense, Objective, Task, TaskKind

if TYPE_CHECKING:
    from torch import Tensor


class Classification(TaskKind):
    name = "classification"
    noun = "class"
    counted = "samples"
    default_metric = "accuracy"
    target_figure = "share of samples"
    exclusive = True

    def objective(
        self, task: Task, weights: Tensor | None = None, smoothing: float = 0.0, device: str = "cpu"
    ) -> Objective:
        return CrossEntropy(task.classes, weights, smoothing)

    def make_blank(self, task: Task, n: int) -> Tensor:
        import torch

        return torch.arange(n) % task.classes

    def strata(self, y: Any, names: tuple[str, ...]) -> tuple[Any, tuple[str, ...]]:
        return y, names

    def describe_targets(self, y: Any, outputs: int) -> list[str]:
        return [f"{(y == k).mean():.1%}" for k in range(outputs)]

    def decode(self, scores: Any, classes: Any) -> Any:
        return classes[scores.argmax(1)]


class CrossEntropy(Objective):
    """Cross-entropy; `weights` [classes] multiply the loss of a sample by that of its class, and are not normalized."""

    def __init__(self, classes: int, weights: Tensor | None = None, smoothing: float = 0.0) -> None:
        self.classes = classes
        self.weights = weights
        self.smoothing = smoothing
        self.is_plain = weights is None and not smoothing

    def loss(self, scores: Tensor, y: Tensor) -> Tensor:
        """The mean over samples or pixels; torch's own weights would cancel out in a batch of one class."""
        from torch.nn.functional import cross_entropy

        if self.weights is None:
            return cross_entropy(scores, y, label_smoothing=self.smoothing)
        each = cross_entropy(scores, y, label_smoothing=self.smoothing, reduction="none")
        return (each * self.weights[y]).mean()

    def losses(self, scores: Tensor, y: Tensor) -> Tensor:
        from torch.nn.functional import cross_entropy

        each = cross_entropy(scores, y, label_smoothing=self.smoothing, reduction="none")
        each = each if self.weights is None else each * self.weights[y]
        return each.flatten(1).mean(1) if each.dim() > 1 else each

    def divergence(self, p: Tensor, q: Tensor) -> Tensor:
        """KL(p || q)."""
        from torch.nn.functional import kl_div, log_softmax

        return kl_div(log_softmax(q, 1), log_softmax(p, 1), reduction="batchmean", log_target=True)

    def dense(self, y: Tensor) -> Dense:
        import torch
        from torch.nn.functional import one_hot

        targets = one_hot(y, self.classes).float() * (1 - self.smoothing) + self.smoothing / self.classes
        weights = torch.ones(len(y), device=y.device) if self.weights is None else self.weights[y]
        return Dense(targets, weights.unsqueeze(1), "softmax")

    def counts(self, y: Tensor) -> Tensor:
        return y.flatten().bincount(minlength=self.classes)

    def guess(self, y: Tensor) -> Tensor:
        """[classes]: the logarithm of how frequent each is, as if each had been seen once more."""
        counts = self.counts(y) + 1
        return (counts / counts.sum()).log()

    def probabilities(self, scores: Tensor) -> Tensor:
        return scores.softmax(1)


CROSS_ENTROPY = CrossEntropy(0)
"""the loss alone, for any number of classes"""
