"""One or several quantities for each sample."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .base import Dense, Objective, Task, TaskKind

if TYPE_CHECKING:
    from torch import Tensor

STRATA = 10
"""intervals into which targets are divided"""


class Regression(TaskKind):
    name = "regression"
    noun = "target"
    counted = ""
    default_metric = "rmse"
    target_figure = "mean ± deviation"
    quantitative = True

    def objective(
        self, task: Task, weights: Tensor | None = None, smoothing: float = 0.0, device: str = "cpu"
    ) -> Objective:
        import torch

        scale = torch.tensor([task.centre or (0.0,) * task.classes, task.spread or (1.0,) * task.classes])
        return SquaredError(*scale.to(device))

    def strata(self, y: Any, names: tuple[str, ...]) -> tuple[Any, tuple[str, ...]]:
        """Which tenth of all values the first quantity is in."""
        import numpy as np

        edges = np.unique(np.quantile(y[:, 0], np.arange(1, STRATA) / STRATA))
        bounds = [f"{e:.4g}" for e in edges]
        between = [f"{a} to {b}" for a, b in pairwise(bounds)]
        return np.searchsorted(edges, y[:, 0], side="right"), (f"below {bounds[0]}", *between, f"from {bounds[-1]}")

    def describe_targets(self, y: Any, outputs: int) -> list[str]:
        return [f"{m:.4g} ± {s:.4g}" for m, s in zip(y.mean(0), y.std(0), strict=True)]

    def decode(self, scores: Any, classes: Any) -> Any:
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def check_options(self, task: Task, weights: Sequence[float] | str | None, smoothing: float) -> None:
        for name, value, off in (("class_weights", weights, None), ("label_smoothing", smoothing, 0.0)):
            if value != off:
                raise ConfigError(f"train.{name} is {value!r}, but task is {self.name!r}, which has no classes.")


class SquaredError(Objective):
    """Squared error, the mean over targets. Networks learn (y - centre) / spread, so units do not matter."""

    def __init__(self, centre: Tensor, spread: Tensor) -> None:
        self.centre = centre
        self.spread = spread

    def loss(self, scores: Tensor, y: Tensor) -> Tensor:
        from torch.nn.functional import mse_loss

        return mse_loss(scores, self._scale(y))

    def losses(self, scores: Tensor, y: Tensor) -> Tensor:
        return (scores - self._scale(y)).square().mean(1)

    def divergence(self, p: Tensor, q: Tensor) -> Tensor:
        """Of normal distributions around the scores: their squared distance."""
        from torch.nn.functional import mse_loss

        return mse_loss(q, p)

    def dense(self, y: Tensor) -> Dense:
        return Dense(self._scale(y), y.new_full((len(y), 1), 2 / y.shape[1]), "identity")

    def counts(self, y: Tensor) -> Tensor:
        import torch

        return torch.full(y.shape[1:], len(y), device=y.device)

    def guess(self, y: Tensor) -> Tensor:
        return self._scale(y.double()).mean(0).float()

    def in_target_units(self, scores: Tensor) -> Tensor:
        return scores * self.spread + self.centre

    def probabilities(self, scores: Tensor) -> Tensor:
        return self.in_target_units(scores)

    def _scale(self, y: Tensor) -> Tensor:
        return (y - self.centre) / self.spread
