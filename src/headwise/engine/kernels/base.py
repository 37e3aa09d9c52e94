"""The contract of a kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar, NamedTuple

from torch import Tensor


class Feed(NamedTuple):
    """A client's training samples, in the two forms that kernels use."""

    batches: Callable[[], Iterator[tuple[Tensor, Tensor]]]
    """one batch after another, drawn lazily"""
    whole: Callable[[], tuple[Tensor, Tensor, Tensor]]
    """all samples and labels, and the indices of each step's batch: [steps, size], short batches padded with -1"""


class Adam(NamedTuple):
    """The settings of Adam, or of AdamW, where weight decay is not part of the gradient."""

    beta1: float
    beta2: float
    eps: float
    decoupled: bool


class Rates(NamedTuple):
    """The settings of a descent."""

    lr: float
    momentum: float
    weight_decay: float
    clip: float | None = None
    """maximum norm of a step's gradient"""
    adam: Adam | None = None
    """none: SGD"""


class Kernel(ABC):
    """One phase of a client's training."""

    name: ClassVar[str]
    flops: float = 0.0
    """floating-point operations of the training, counting zero gradients too; 0 if the kernel does not count"""

    @property
    def section(self) -> str:
        """The name of its time in the clock, in the round's row and in the profile."""
        return f"training.{self.name}"

    @abstractmethod
    def train(self, feed: Feed) -> int:
        """Train in place; return the steps taken."""
