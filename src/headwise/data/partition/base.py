"""The contract of a partition."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ...settings.fields import Checked

Indices = NDArray[np.int64]


class Partition(Checked, ABC):
    """A scheme that divides samples among clients. Subclasses are frozen dataclasses; their fields are options."""

    kind: ClassVar[str] = "partition"

    @abstractmethod
    def divide(
        self, labels: NDArray[np.int64], clients: int, rng: np.random.Generator, owner: NDArray[np.int64] | None
    ) -> Sequence[Indices]:
        """The indices of each client's samples: disjoint, never empty, a pure function of the arguments.

        `owner` holds each sample's natural client if the data has them; only natural partitions use it.
        """
