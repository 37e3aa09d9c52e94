"""One of several classes for each pixel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .base import Dense, Objective, Task
from .classification import Classification, CrossEntropy

if TYPE_CHECKING:
    from torch import Tensor


class Segmentation(Classification):
    name = "segmentation"
    counted = "pixels"
    default_metric = "iou"
    target_figure = "share of pixels"
    per_pixel = True

    def objective(
        self, task: Task, weights: Tensor | None = None, smoothing: float = 0.0, device: str = "cpu"
    ) -> Objective:
        return PixelCrossEntropy(task.classes, weights, smoothing)

    def make_blank(self, task: Task, n: int) -> Tensor:
        return super().make_blank(task, n)[:, None, None].expand(-1, *task.shape[1:]).clone()

    def strata(self, y: Any, names: tuple[str, ...]) -> tuple[Any, tuple[str, ...]]:
        """The class of most pixels beside class 0."""
        import numpy as np

        counts = np.stack([(y == k).sum((1, 2)) for k in range(1, len(names))], axis=1)
        return np.where(counts.any(1), counts.argmax(1) + 1, 0), names

    def decode(self, scores: Any, classes: Any) -> Any:
        return scores.argmax(1)


class PixelCrossEntropy(CrossEntropy):
    """Cross-entropy, the mean over all pixels; scores are [n, classes, height, width]."""

    flat: bool = False

    def __init__(self, classes: int, weights: Tensor | None = None, smoothing: float = 0.0) -> None:
        super().__init__(classes, weights, smoothing)
        self.is_plain = False

    def divergence(self, p: Tensor, q: Tensor) -> Tensor:
        """KL(p || q), the mean over all pixels."""
        from torch.nn.functional import kl_div, log_softmax

        each = kl_div(log_softmax(q, 1), log_softmax(p, 1), reduction="none", log_target=True)
        return each.sum(1).mean()

    def dense(self, y: Tensor) -> Dense:
        raise TypeError("pixels have no dense form")

    def guess(self, y: Tensor) -> Tensor:
        return super().guess(y)[:, None, None].expand(-1, *y.shape[1:])
