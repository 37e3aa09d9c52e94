"""The contract of a kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar, NamedTuple

from torch import Tensor


class Feed(NamedTuple):
    """A client's training samples; a kernel asks for them in the way that it needs."""

    batches: Callable[[], Iterator[tuple[Tensor, Tensor]]]
    """one after another, each drawn when it is asked for"""
    whole: Callable[[], tuple[Tensor, Tensor, Tensor]]
    """all samples and labels, and the indices of each step's batch: [steps, size], -1 where a short one has no more"""


class Rates(NamedTuple):
    """The settings of a descent."""

    lr: float
    momentum: float
    weight_decay: float
    clip: float | None = None
    """largest norm of a step's gradient"""


class Kernel(ABC):
    """One phase of a client's training."""

    name: ClassVar[str]
    flops: float = 0.0
    """floating-point operations of the training, as if no gradient were zero; 0 where nobody counts them"""

    @property
    def section(self) -> str:
        """What the clock calls its time, and with it the round's row and the profile."""
        return f"training.{self.name}"

    @abstractmethod
    def train(self, feed: Feed) -> int:
        """Train in place; return the steps taken."""
