"""The contract of a partition, and what the schemes share.

A scheme decides *how many* samples of each class a client gets, a matrix [clients, classes]: `cut` turns shares into
counts, `settle` gives every client enough samples, and `deal` assigns samples by these counts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import ClassVar

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ...errors import DataError
from ...settings.fields import Checked

Indices = NDArray[np.int64]
Labels = NDArray[np.int64]
"""[n] the class, or the owner, of each sample"""


class Partition(Checked, ABC):
    """A scheme that divides samples among clients. Subclasses are frozen dataclasses; their fields are options."""

    kind: ClassVar[str] = "partition"

    @abstractmethod
    def divide(self, labels: Labels, clients: int, rng: Generator, owner: Labels | None) -> Sequence[Indices]:
        """The indices of each client's samples: disjoint, never empty, a pure function of the arguments.

        `owner` holds each sample's natural client if the data has them; only natural partitions use it.
        """


Counts = NDArray[np.int64]
"""[clients, classes] numbers of samples; the columns are the classes that occur, in ascending order"""
Mask = NDArray[np.bool_]


def tally(labels: Labels, clients: int) -> NDArray[np.int64]:
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


def divide_evenly(n: int, pieces: int) -> NDArray[np.int64]:
    """Integers that add up to n and differ by at most one."""
    return np.diff(np.arange(pieces + 1) * n // pieces)


def draw_dirichlet(totals: NDArray[np.int64], owners: Mask, alpha: float, balance: bool, rng: Generator) -> Counts:
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


def deal(labels: Labels, counts: Counts, rng: Generator | None) -> list[Indices]:
    """Assign samples by these counts; each class is shuffled first, or in stored order without `rng`."""
    order = np.arange(len(labels)) if rng is None else rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    clients, classes = counts.shape
    client = np.empty_like(order)
    client[order] = np.repeat(np.tile(np.arange(clients), classes), counts.T.ravel())
    return group(client, clients)


def count_labels(labels: Labels, groups: Sequence[Indices], classes: int) -> Counts:
    """[groups, classes] how often each label occurs in each group: the inverse of `deal`."""
    group_of = np.repeat(np.arange(len(groups)), [len(g) for g in groups])
    cells = group_of * classes + labels[np.concatenate(groups)]
    return np.bincount(cells, minlength=len(groups) * classes).reshape(-1, classes)


def apportion(totals: NDArray[np.int64], weights: Counts, rng: Generator) -> Counts:
    """Divide each class's total among clients in proportion to the weights: largest remainders, ties at random."""
    whole, remainder = np.divmod(weights * totals, weights.sum(0))
    rank = (-remainder - rng.random(weights.shape)).argsort(0).argsort(0)
    return whole + (rank < totals - whole.sum(0))


CELLS = 20_000_000
"""about how many numbers a scheme draws in all"""
TRIES = (10, 1_000)
"""least and most draws"""
EXCHANGES = 2_000
"""most exchanges over several clients that a repair makes"""


def settle(draw: Callable[[], Counts], least: int, allowed: Mask) -> Counts | None:
    """The first draw with `least` samples for every client, else the closest one repaired; None if impossible."""
    best = None
    missing = np.inf
    for _ in range(int(np.clip(CELLS // allowed.size, *TRIES))):
        counts = draw()
        lack = np.maximum(least - counts.sum(1), 0).sum()
        if lack == 0:
            return counts
        if lack < missing:
            best = counts
            missing = lack
    assert best is not None
    return lift(best, least, allowed)


def lift(counts: Counts, least: int, allowed: Mask) -> Counts | None:
    """Move samples from clients above `least` to clients below it; a receiver only gets classes it is `allowed`.

    A receiver first gets more of its largest class, which keeps its mixture; then any allowed class.
    """
    counts = counts.copy()
    clients, classes = counts.shape
    turn = (np.arange(classes) + np.arange(clients)[:, None]) % classes / classes  # spreads ties over the classes
    most = np.where(allowed, counts + turn, -1).argmax(1)
    for receivable in (np.arange(classes) == most[:, None], allowed):
        _move(counts, least, receivable)
    for _ in range(EXCHANGES):
        if (counts.sum(1) >= least).all():
            return counts
        if not _exchange(counts, least, allowed):
            break
    return None


def _move(counts: Counts, least: int, receivable: Mask) -> None:
    """In place, class by class: each client above `least` gives in proportion to what it can spare."""
    spare = counts.sum(1) - least
    for k in range(counts.shape[1]):
        give = np.minimum(counts[:, k], spare).clip(0)
        take = np.where(receivable[:, k], -spare, 0).clip(0)
        moved = min(give.sum(), take.sum())
        change = _divide_in_proportion(take, moved) - _divide_in_proportion(give, moved)
        counts[:, k] += change
        spare += change


def _divide_in_proportion(limits: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """Integers that add up to n, proportional to the limits and within them."""
    return np.diff(np.cumsum(limits) * n // max(limits.sum(), 1), prepend=0)


def _exchange(counts: Counts, least: int, allowed: Mask) -> bool:
    """In place: help the smallest client through others that receive one class and pass on another.

    An augmenting path of a flow, found breadth-first over the classes; without one, no repair exists.
    """
    spare = counts.sum(1) - least
    poor = int(spare.argmin())
    receiver = {int(k): (poor, -1) for k in np.flatnonzero(allowed[poor])}  # class -> who gets it, what it passes on
    queue = deque(receiver)
    while queue:
        k = queue.popleft()
        holders = np.flatnonzero(counts[:, k])
        if len(holders) and spare[donor := holders[spare[holders].argmax()]] > 0:
            _pass_on(counts, int(donor), k, receiver, min(spare[donor], -spare[poor]))
            return True
        for new in np.flatnonzero(allowed[holders].any(0)):
            if int(new) not in receiver:
                receiver[int(new)] = (int(holders[allowed[holders, new].argmax()]), k)
                queue.append(int(new))
    return False


def _pass_on(counts: Counts, donor: int, k: int, receiver: dict[int, tuple[int, int]], most: int) -> None:
    """In place: move as many samples as every client on the path can pass on."""
    gives = [(donor, k)]
    takes: list[tuple[int, int]] = []
    while k >= 0:
        client, next_class = receiver[k]
        takes.append((client, k))
        gives.append((client, next_class))
        k = next_class
    gives.pop()  # the last client on the path keeps what it gets
    n = min(most, *(counts[cell] for cell in gives))
    for giving, taking in zip(gives, takes, strict=True):
        counts[giving] -= n
        counts[taking] += n
