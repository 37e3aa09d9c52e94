"""Pathological — McMahan et al., AISTATS 2017, "pathological non-IID". https://arxiv.org/abs/1602.05629

`grouped` is the unbalanced variant of the public generator (PFLlib) behind FedAH's and FedAFK's tables, `shards` the
paper's. If the public generator would leave a class without clients, or a client with too few classes, a class gets
more or fewer clients than the generator's ⌈N·c/C⌉.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ...errors import DataError
from ...settings.fields import Count
from .base import Indices, Labels, Mask, Partition, check_classes, deal, divide_evenly, group, tally


@dataclass(frozen=True)
class Pathological(Partition):
    """Each client has only a few classes, by default the same ones as its neighbours."""

    classes_per_client: Count = 2
    """classes per client; with `shards`, shards per client"""
    balance: bool = False
    """true: a class is divided evenly among its clients; shards are always equal"""
    assignment: Literal["grouped", "shards"] = "grouped"
    """grouped: consecutive clients have the same classes; shards: random pieces of the samples sorted by class"""

    def divide(self, labels: Labels, clients: int, rng: Generator, owner: Labels | None) -> Sequence[Indices]:
        """Assign classes to clients in order, or shards at random; samples of a class keep their stored order."""
        totals = tally(labels, clients)
        if self.assignment == "shards":
            return self._deal_shards(labels, clients, rng)
        check_classes(self.classes_per_client, clients, len(totals))
        owners = group_owners(clients, len(totals), self.classes_per_client)
        counts = np.zeros(owners.shape, dtype=np.int64)
        least = min(40, len(labels) / clients / 2) / len(totals)
        for k, n in enumerate(totals):
            counts[owners[:, k], k] = self._draw_sizes(int(n), int(owners[:, k].sum()), least, rng)
        return deal(labels, counts, None)

    def _draw_sizes(self, n: int, clients: int, least: float, rng: Generator) -> NDArray[np.int64]:
        """How many of a class's n samples each of its clients gets; unbalanced, the last one gets the remainder."""
        if n < clients:
            raise DataError(
                f"classes_per_client is {self.classes_per_client}, which gives a class of {n} samples to {clients} "
                f"clients: give fewer clients or fewer classes per client."
            )
        if self.balance:
            return divide_evenly(n, clients)
        high = max(n // clients, 2)
        low = min(max(int(max(n / clients / 10, least)), 1), high - 1)
        sizes = rng.integers(low, high, clients)
        sizes[-1] = n - sizes[:-1].sum()
        return sizes

    def _deal_shards(self, labels: Labels, clients: int, rng: Generator) -> list[Indices]:
        shards = clients * self.classes_per_client
        if shards > len(labels):
            raise DataError(
                f"classes_per_client is {self.classes_per_client}, but {len(labels)} samples are too few for "
                f"{shards} shards ({clients} clients): give fewer clients or fewer classes per client."
            )
        client = np.empty(len(labels), dtype=np.int64)
        sizes = divide_evenly(len(labels), shards)
        client[np.argsort(labels, kind="stable")] = np.repeat(rng.permutation(shards) % clients, sizes)
        return group(client, clients)


def group_owners(clients: int, classes: int, per_client: int) -> Mask:
    """[clients, classes] who owns what: each class goes to the first ⌈N·c/C⌉ clients that need another class."""
    owners = np.zeros((clients, classes), dtype=bool)
    free = np.full(clients, per_client)
    for k in range(classes):
        later = classes - k - 1
        takers = min(-(-clients * per_client // classes), free.sum() - later)  # leaves one slot for each later class
        owners[np.flatnonzero(free)[:takers], k] = True
        owners[free > later, k] = True  # clients that need all remaining classes
        free -= owners[:, k]
    return owners
