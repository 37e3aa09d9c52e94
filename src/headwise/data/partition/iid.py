"""Independent and identically distributed clients: samples are assigned at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from .base import Indices, Labels, Partition, cut, divide_evenly, group, tally


@dataclass(frozen=True)
class IID(Partition):
    """Each client gets a random subset of all samples, so all clients look alike."""

    balance: bool = True
    """true: equal sizes; false: sizes in proportion to uniform draws from 0.1 to 1"""

    def divide(self, labels: Labels, clients: int, rng: Generator, owner: Labels | None) -> Sequence[Indices]:
        """Shuffle, then cut into one piece per client."""
        tally(labels, clients)
        n = len(labels)
        sizes = divide_evenly(n, clients) if self.balance else 1 + cut(rng.uniform(0.1, 1, clients), n - clients)
        return group(rng.permutation(np.repeat(np.arange(clients), sizes)), clients)
