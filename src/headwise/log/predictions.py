"""What metrics are computed from: scores and targets, or only counts of them."""

from __future__ import annotations

from functools import cached_property
from operator import add
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class Hits(NamedTuple):
    """How often each class or label is both predicted and true, true, and predicted: of samples or pixels."""

    both: Tensor
    true: Tensor
    said: Tensor


class Predictions:
    """What a model says about one client's samples, and the truth; `formulas` has their shapes."""

    def __init__(self, scores: Tensor, targets: Tensor, task: str = "classification") -> None:
        self.scores, self.targets, self.task, self.n = scores, targets, task, len(targets)

    @property
    def labels(self) -> Tensor:
        """The targets of a classification, [n]."""
        return self.targets

    @cached_property
    def confusion(self) -> Tensor:
        """Counts of samples or pixels: true classes by row, predicted ones by column."""
        classes = self.scores.shape[1]
        pairs = (self.targets * classes + self.scores.argmax(1)).flatten()
        return pairs.bincount(minlength=classes * classes).view(classes, classes).double()

    @cached_property
    def hits(self) -> Hits:
        if self.task != "multilabel":
            return Hits(self.confusion.diag(), self.confusion.sum(1), self.confusion.sum(0))
        true, said = self.targets > 0.5, self.scores > 0
        return Hits(*(each.sum(0).double() for each in (true & said, true, said)))


class Tally(Predictions):
    """The counts of many batches, for metrics that need no scores."""

    def __init__(self, task: str) -> None:
        self.task, self.n = task, 0

    def add(self, batch: Predictions) -> None:
        mine = vars(self)  # where cached properties look first
        if self.task == "multilabel":
            mine["hits"] = Hits(*map(add, self.hits, batch.hits)) if self.n else batch.hits
        elif self.task != "regression":
            mine["confusion"] = self.confusion + batch.confusion if self.n else batch.confusion
        self.n += batch.n
