"""Natural clients: the data says whose samples are whose, for instance by hospital or writer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from .base import Indices, Partition
from .shares import group


@dataclass(frozen=True)
class Natural(Partition):
    """Every client is one owner of samples in the real world, with exactly the samples of that owner."""

    def divide(
        self, labels: NDArray[np.int64], clients: int, rng: np.random.Generator, owner: NDArray[np.int64] | None
    ) -> Sequence[Indices]:
        """Samples by owner, owners by their ids."""
        if owner is None:
            raise DataError("partition is 'natural', but this data set has no natural clients: choose another one.")
        ids, client = np.unique(owner, return_inverse=True)
        if clients != len(ids):
            raise DataError(f"clients is {clients}, but this data set has {len(ids)} natural clients: give {len(ids)}.")
        return group(client, clients)
