"""Natural clients: the data says which client each sample belongs to, such as a hospital or a writer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from ...errors import DataError
from .base import Indices, Labels, Partition, group


@dataclass(frozen=True)
class Natural(Partition):
    """Each client is a real owner of samples, such as a hospital, and has exactly that owner's samples."""

    def divide(self, labels: Labels, clients: int, rng: Generator, owner: Labels | None) -> Sequence[Indices]:
        """Group by owner, in the order of owner ids."""
        if owner is None:
            raise DataError("partition is 'natural', but this data set has no natural clients: choose another one.")
        ids, client = np.unique(owner, return_inverse=True)
        if clients != len(ids):
            raise DataError(f"clients is {clients}, but this data set has {len(ids)} natural clients: give {len(ids)}.")
        return group(client, clients)
