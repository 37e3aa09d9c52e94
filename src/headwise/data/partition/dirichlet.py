"""Dirichlet — Hsu, Qi, Brown, arXiv 2019. https://arxiv.org/abs/1909.06335

In the form common in personalized learning (PFLlib, after Yurochkin et al., ICML 2019), with a rule that keeps clients
from growing far beyond the mean size. `balance = false` is the paper's definition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from ...errors import DataError
from ...settings.fields import Count, Positive
from .base import Indices, Labels, Partition, deal, draw_dirichlet, settle, tally


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Divides each class among all clients by random shares: the smaller alpha, the fewer clients get most of it."""

    alpha: Positive = 0.1
    """concentration of the shares: 0.1 makes clients very different, 100 almost alike"""
    min_size: Count | None = None
    """minimum samples per client; none: 40, or half the mean size if that is less"""
    balance: bool = True
    """a client that has reached the mean size gets no samples of the remaining classes"""

    def divide(self, labels: Labels, clients: int, rng: Generator, owner: Labels | None) -> Sequence[Indices]:
        """Draw until every client has the minimum, then cut the shuffled classes."""
        totals = tally(labels, clients)
        least = self.min_size or max(min(40, len(labels) // (2 * clients)), 1)
        if least * clients > len(labels):
            raise DataError(
                f"min_size is {least}, but {len(labels)} samples give {clients} clients at most "
                f"{len(labels) // clients} each: give that, or fewer clients."
            )
        everyone = np.ones((clients, len(totals)), dtype=bool)
        counts = settle(lambda: draw_dirichlet(totals, everyone, self.alpha, self.balance, rng), least, everyone)
        assert counts is not None, "enough samples for all, and anyone may have any class"
        return deal(labels, counts, rng)
