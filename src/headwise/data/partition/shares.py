"""Helpers of the schemes, which decide *how many* samples of each class a client gets: a matrix [clients, classes].

`cut` turns shares into counts, `deal` assigns samples by these counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from .base import Indices

Counts = NDArray[np.int64]
"""[clients, classes] numbers of samples; the columns are the classes that occur, in ascending order"""
Mask = NDArray[np.bool_]


def tally(labels: NDArray[np.int64], clients: int) -> NDArray[np.int64]:
    """The number of samples of each class that occurs; raises if there are fewer samples than clients."""
    if clients > len(labels):
        raise DataError(f"clients is {clients}, but there are only {len(labels)} samples: give fewer clients.")
    return np.unique(labels, return_counts=True)[1]


def check_classes(per_client: int, clients: int, classes: int) -> None:
    """Raise unless every client can have `per_client` classes, and every class a client."""
    if per_client > classes:
        raise DataError(f"classes_per_client is {per_client}, but must be at most {classes}: the data has no more.")
    if per_client * clients < classes:
        raise DataError(
            f"clients is {clients} with classes_per_client {per_client}, which leaves some of the {classes} classes "
            f"to nobody: give {-(-classes // per_client)} clients or {-(-classes // clients)} classes per client."
        )


def cut(shares: NDArray[np.float64], n: int) -> NDArray[np.int64]:
    """Integers that add up to n, by cumulative shares of any scale; the last share takes the remainder."""
    edges = np.cumsum(shares)
    return np.diff((edges / edges[-1] * n).astype(np.int64), prepend=0)


def even(n: int, pieces: int) -> NDArray[np.int64]:
    """Integers that add up to n and differ by at most one."""
    return np.diff(np.arange(pieces + 1) * n // pieces)


def dirichlet(totals: NDArray[np.int64], owners: Mask, alpha: float, balance: bool, rng: np.random.Generator) -> Counts:
    """Divide each class among its owners by Dirichlet shares.

    With `balance`, clients that have reached the mean size get no further classes. They are left out of the draw
    instead of being zeroed after it, which is the same distribution without underflow. If all owners of a class are
    full, the last one takes it.
    """
    counts = np.zeros(owners.shape, dtype=np.int64)
    sizes = np.zeros(len(owners), dtype=np.int64)
    for k, n in enumerate(totals):
        takers = owners[:, k] & (sizes * len(sizes) < totals.sum()) if balance else owners[:, k]
        who = np.flatnonzero(takers) if takers.any() else np.flatnonzero(owners[:, k])[-1:]
        counts[who, k] = cut(rng.dirichlet(np.full(len(who), alpha)), n)
        sizes += counts[:, k]
    return counts


def group(client: NDArray[np.int64], clients: int) -> list[Indices]:
    """The indices of each client's samples; `client` holds the client of each sample."""
    order = np.argsort(client, kind="stable")
    ends = np.cumsum(np.bincount(client, minlength=clients)).tolist()
    return [order[a:b] for a, b in pairwise([0, *ends])]  # several times as fast as `np.split`


def deal(labels: NDArray[np.int64], counts: Counts, rng: np.random.Generator | None) -> list[Indices]:
    """Assign samples by these counts; each class is shuffled first, or in stored order without `rng`."""
    order = np.arange(len(labels)) if rng is None else rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    clients, classes = counts.shape
    client = np.empty_like(order)
    client[order] = np.repeat(np.tile(np.arange(clients), classes), counts.T.ravel())
    return group(client, clients)


def histograms(labels: NDArray[np.int64], groups: Sequence[Indices], classes: int) -> Counts:
    """[groups, classes] how often each label occurs in each group: the inverse of `deal`."""
    group_of = np.repeat(np.arange(len(groups)), [len(g) for g in groups])
    cells = group_of * classes + labels[np.concatenate(groups)]
    return np.bincount(cells, minlength=len(groups) * classes).reshape(-1, classes)


def apportion(totals: NDArray[np.int64], weights: Counts, rng: np.random.Generator) -> Counts:
    """Divide each class's total among clients in proportion to the weights: largest remainders, ties at random."""
    whole, remainder = np.divmod(weights * totals, weights.sum(0))
    rank = (-remainder - rng.random(weights.shape)).argsort(0).argsort(0)
    return whole + (rank < totals - whole.sum(0))
