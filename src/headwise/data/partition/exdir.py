"""Extended Dirichlet — Li, Lyu, arXiv 2023. https://arxiv.org/abs/2311.03154

As the public generator behind FedGMH's tables draws it; `balance = false` is the paper's definition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from ...errors import DataError
from ...settings.fields import Count, Positive
from .base import Indices, Labels, Mask, Partition, check_classes, deal, draw_dirichlet, settle, tally

TRIES = 100
"""How often to redraw owners before moving ownership from common classes to rare ones."""


@dataclass(frozen=True)
class ExDir(Partition):
    """Each client owns a few random classes, and each class is divided among its owners by Dirichlet shares."""

    classes_per_client: Count = 2
    """maximum classes per client"""
    alpha: Positive = 0.5
    """concentration of the shares: the smaller, the fewer owners get most of a class"""
    balance: bool = True
    """a client that has reached the mean size gets no samples of the remaining classes"""
    min_size: Count = 10
    """minimum samples per client"""

    def divide(self, labels: Labels, clients: int, rng: Generator, owner: Labels | None) -> Sequence[Indices]:
        """Draw owners, then shares among them until every client has the minimum."""
        totals = tally(labels, clients)
        check_classes(self.classes_per_client, clients, len(totals))
        owners = draw_owners(clients, len(totals), self.classes_per_client, rng)
        counts = None
        if self.min_size * clients <= len(labels):
            counts = settle(
                lambda: draw_dirichlet(totals, owners, self.alpha, self.balance, rng), self.min_size, owners
            )
        if counts is None:
            raise DataError(
                f"min_size is {self.min_size}, but {len(labels)} samples are too few for {clients} clients with "
                f"{self.classes_per_client} classes each: give a smaller one, fewer clients or more classes per client."
            )
        return deal(labels, counts, rng)


def draw_owners(clients: int, classes: int, per_client: int, rng: Generator) -> Mask:
    """[clients, classes] who owns what, redrawn until each class has at least half its expected owners, and one."""
    least = max(per_client * clients // classes // 2, 1)
    first = np.tile(np.arange(classes) < per_client, (clients, 1))
    owners = rng.permuted(first, axis=1)
    for _ in range(TRIES):
        if owners.sum(0).min() >= least:
            break
        owners = rng.permuted(first, axis=1)
    return _spread(owners, least, rng)


def _spread(owners: Mask, least: int, rng: Generator) -> Mask:
    """Owners of the commonest class take the rarest one instead, until every class has enough."""
    owners = owners.copy()
    have = owners.sum(0)
    while have.min() < least:  # ends: the mean is at least `least`, so the commonest class can spare one
        rare = have.argmin()
        common = have.argmax()
        client = rng.choice(np.flatnonzero(owners[:, common] & ~owners[:, rare]))
        owners[client, [rare, common]] = True, False
        have[rare] += 1
        have[common] -= 1
    return owners
