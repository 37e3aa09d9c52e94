"""fastText — Joulin, Grave, Bojanowski, Mikolov, EACL 2017. https://arxiv.org/abs/1607.01759

Token 0 is padding (and the unknown word): its embedding stays zero. It counts in the mean, so a short text has small
features.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from .base import Model, Task, misfit
from .split import SplitModel

FEATURES = 32


@dataclass(frozen=True)
class FastText(Model):
    """The mean of the word embeddings, one linear layer without activation, one linear head; for texts."""

    sparse: bool = False
    "sparse gradients of the embedding: faster with a large vocabulary, but not with every optimizer"

    def build(self, task: Task) -> SplitModel:
        if task.vocabulary < 1 or len(task.shape) != 1:
            raise misfit(self, task, "texts (positions,) with a vocabulary of at least 1")
        words = nn.Embedding(task.vocabulary, FEATURES, padding_idx=0, sparse=self.sparse)
        body = nn.Sequential(words, Mean(), nn.Linear(FEATURES, FEATURES))
        return SplitModel(body, nn.Linear(FEATURES, task.classes))


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=1)  # [texts, positions, features] to [texts, features]
