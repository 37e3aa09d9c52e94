"""The contract of a task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, NamedTuple

from torch import Tensor

Link = Literal["softmax", "sigmoid", "identity"]


class Dense(NamedTuple):
    """Targets for kernels without autograd: the loss's gradient by the scores is weights * (link(scores) - targets)."""

    targets: Tensor
    """[n, outputs]: what the scores should mean"""
    weights: Tensor
    """[n, 1] or [n, outputs]: how much each counts in the loss of its sample"""
    link: Link
    """what scores mean"""


class Objective(ABC):
    """What a network's scores mean in a task, how wrong they are, and what can be said without looking at a sample."""

    flat: ClassVar[bool] = True
    """whether scores are [n, outputs], for which there are kernels without autograd"""
    usual: bool = False
    """whether the loss is the plain cross-entropy of classes, whose targets need not be dense"""

    @abstractmethod
    def loss(self, scores: Tensor, y: Tensor) -> Tensor:
        """The mean over a batch."""

    @abstractmethod
    def divergence(self, p: Tensor, q: Tensor) -> Tensor:
        """How much larger the expected loss of the scores `q` is than that of `p`, if targets are as `p` says."""

    @abstractmethod
    def dense(self, y: Tensor) -> Dense:
        """The loss for kernels without autograd, if it is `flat`."""

    @abstractmethod
    def counts(self, y: Tensor) -> Tensor:
        """[outputs]: how many samples or pixels are of each class, have each label or each quantity."""

    @abstractmethod
    def guess(self, y: Tensor) -> Tensor:
        """The scores of one sample that suit these targets best on the whole, before anything is known about it."""

    @abstractmethod
    def said(self, scores: Tensor) -> Tensor:
        """The scores as metrics take them: quantities in their own units, all others as they are."""

    @abstractmethod
    def predict(self, scores: Tensor) -> Tensor:
        """Class numbers [n], labels 0 or 1 [n, labels], quantities [n, targets], or masks [n, height, width]."""

    @abstractmethod
    def probabilities(self, scores: Tensor) -> Tensor:
        """Of classes or labels, in the shape of the scores; a `ConfigError` where there are only quantities."""
