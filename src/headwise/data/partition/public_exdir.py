"""Extended Dirichlet, FedGMH's own draw — Sun and Ni 2026, from their public generator, which seeds NumPy with 1.

The same random numbers in the same order give the clients of the published tables. Test samples are drawn as usual, not
as the authors drew them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ...errors import DataError
from ...settings.fields import Count, Natural, Positive, Share
from .base import Indices, Labels, Mask, Partition, check_classes, group, tally

TRIES = 1_000


@dataclass(frozen=True)
class PublicExDir(Partition):
    """The clients behind FedGMH's tables: exdir with the authors' seed and stream of random numbers."""

    classes_per_client: Count = 2
    """maximum classes per client"""
    alpha: Positive = 0.5
    """concentration of the shares: the smaller, the fewer owners get most of a class"""
    numpy_seed: Natural = 1
    """seed of the draw; data_seed only decides which samples are for testing"""
    keep: Share = 1.0
    """share of each client's samples to use, so that a smaller experiment has the same clients"""

    def divide(self, labels: Labels, clients: int, rng: Generator, owner: Labels | None) -> Sequence[Indices]:
        """Draw owners, then shares among them until every client has ten samples."""
        classes = len(tally(labels, clients))
        check_classes(self.classes_per_client, clients, classes)
        stream = np.random.RandomState(self.numpy_seed)  # the legacy generator, whose stream never changes
        owners = self._draw_owners(clients, classes, stream)
        for _ in range(TRIES):
            client = self._share_out(labels, owners, stream)
            if np.bincount(client, minlength=clients).min() >= 10:
                return [self._thin(indices, rng) for indices in group(client, clients)]
        raise DataError(f"numpy_seed is {self.numpy_seed}, but none of {TRIES} draws gives every client ten samples.")

    def _draw_owners(self, clients: int, classes: int, stream: np.random.RandomState) -> Mask:
        """[clients, classes] who owns what, drawn until every class has half of its expected owners."""
        least = max(self.classes_per_client * clients // classes // 2, 1)
        for _ in range(TRIES):
            owners = np.zeros((clients, classes), dtype=np.bool_)
            for row in owners:
                row[stream.choice(classes, self.classes_per_client, replace=False)] = True
            if owners.sum(0).min() >= least:
                return owners
        raise DataError(f"clients is {clients}, but none of {TRIES} draws gives every class {least} owners.")

    def _share_out(self, labels: Labels, owners: Mask, stream: np.random.RandomState) -> NDArray[np.int64]:
        """The client of each sample. Clients that have reached the mean size get no further classes."""
        clients = len(owners)
        client = np.empty(len(labels), np.int64)
        sizes = np.zeros(clients, np.int64)
        for k, label in enumerate(np.unique(labels)):
            samples = np.flatnonzero(labels == label)
            stream.shuffle(samples)
            shares = stream.dirichlet(np.full(clients, self.alpha)) * (owners[:, k] & (sizes < len(labels) / clients))
            total = shares.sum()
            edges = (np.cumsum(shares / total if total else shares) * len(samples)).astype(np.int64)
            edges[np.flatnonzero(owners[:, k])[-1] :] = len(samples)  # the last owner takes what is left
            counts = np.diff(edges, prepend=0)
            client[samples] = np.repeat(np.arange(clients), counts)
            sizes += counts
        return client

    def _thin(self, indices: Indices, rng: Generator) -> Indices:
        if self.keep == 1:
            return indices
        return np.sort(rng.permutation(indices)[: max(2, round(self.keep * len(indices)))])
