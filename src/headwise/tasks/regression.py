"""One or several quantities for each sample."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from ..errors import ConfigError
from .base import Dense, Objective


class Regression(Objective):
    """Squared error, the mean over targets. Networks learn (y - centre) / spread, so units do not matter."""

    def __init__(self, centre: Tensor, spread: Tensor) -> None:
        self.centre, self.spread = centre, spread

    def loss(self, scores: Tensor, y: Tensor) -> Tensor:
        return mse_loss(scores, self._scaled(y))

    def divergence(self, p: Tensor, q: Tensor) -> Tensor:
        """Of normal distributions around the scores: their squared distance."""
        return mse_loss(q, p)

    def dense(self, y: Tensor) -> Dense:
        return Dense(self._scaled(y), torch.full_like(y[:, :1], 2 / y.shape[1]), "identity")

    def counts(self, y: Tensor) -> Tensor:
        return torch.full(y.shape[1:], len(y), device=y.device)

    def guess(self, y: Tensor) -> Tensor:
        return self._scaled(y.double()).mean(0).float()

    def said(self, scores: Tensor) -> Tensor:
        return scores * self.spread + self.centre

    def predict(self, scores: Tensor) -> Tensor:
        return self.said(scores)

    def probabilities(self, scores: Tensor) -> Tensor:
        raise ConfigError("task is 'regression', which predicts quantities: there are no probabilities.")

    def _scaled(self, y: Tensor) -> Tensor:
        return (y - self.centre) / self.spread
