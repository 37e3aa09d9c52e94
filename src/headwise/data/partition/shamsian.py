"""c/C classes — Shamsian et al., ICML 2021 (pFedHN). https://arxiv.org/abs/2103.04628

FedGH's 2/10 and 10/100. The remainder of a class goes to its last client, so that no sample is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from ...errors import DataError
from ...settings.fields import Count
from .base import Indices, Labels, Mask, Partition, check_classes, cut, deal, lift, tally


@dataclass(frozen=True)
class Shamsian(Partition):
    """Each client has the same number of random classes, and a class is divided about evenly among its clients."""

    classes_per_client: Count = 2
    """classes per client"""

    def divide(self, labels: Labels, clients: int, rng: Generator, owner: Labels | None) -> Sequence[Indices]:
        """Draw each client's classes, then divide each class in proportion to draws from U(0.4, 0.6)."""
        totals = tally(labels, clients)
        check_classes(self.classes_per_client, clients, len(totals))
        owners = draw_even_owners(clients, len(totals), self.classes_per_client, rng)
        counts = np.zeros(owners.shape, dtype=np.int64)
        for k, n in enumerate(totals):
            counts[owners[:, k], k] = cut(rng.uniform(0.4, 0.6, owners[:, k].sum()), n)
        counts = lift(counts, 1, owners)  # a class may have fewer samples than clients
        if counts is None:
            raise DataError(
                f"clients is {clients}, too many for each to have a sample of its {self.classes_per_client} classes: "
                f"give fewer clients or more classes per client."
            )
        return deal(labels, counts, rng)


def draw_even_owners(clients: int, classes: int, per_client: int, rng: Generator) -> Mask:
    """[clients, classes] who owns what: client by client, at random among the classes with the fewest clients."""
    owners = np.zeros((clients, classes), dtype=bool)
    taken = np.zeros(classes)
    for client in range(clients):
        picks = np.argsort(taken + rng.random(classes))[:per_client]  # fewest clients first, ties at random
        owners[client, picks] = True
        taken[picks] += 1
    return owners
