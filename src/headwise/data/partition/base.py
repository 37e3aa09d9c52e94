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
    """A scheme that divides samples over clients by their labels. A frozen dataclass; its fields are its options."""

    kind: ClassVar[str] = "partition"

    @abstractmethod
    def divide(
        self, labels: NDArray[np.int64], clients: int, rng: np.random.Generator, owner: NDArray[np.int64] | None
    ) -> Sequence[Indices]:
        """For each client the indices of its samples: disjoint, never empty, a pure function of the arguments.

        `owner` holds natural client ids where the data has them; only natural partitions look at it.
        """
