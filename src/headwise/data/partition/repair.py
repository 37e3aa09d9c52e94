"""Ensures a minimum size per client: redraws a bounded number of times, then moves samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .shares import Counts, Mask

CELLS, TRIES = 20_000_000, (10, 1_000)
"""A scheme draws about CELLS numbers in all, in between TRIES[0] and TRIES[1] draws."""
EXCHANGES = 2_000
"""The most exchanges over several clients that a repair makes."""


def settle(draw: Callable[[], Counts], least: int, allowed: Mask) -> Counts | None:
    """The first draw with `least` samples for every client, else the closest one repaired; None if impossible."""
    best, missing = None, np.inf
    for _ in range(int(np.clip(CELLS // allowed.size, *TRIES))):
        counts = draw()
        lack = np.maximum(least - counts.sum(1), 0).sum()
        if lack == 0:
            return counts
        if lack < missing:
            best, missing = counts, lack
    assert best is not None
    return lift(best, least, allowed)


def lift(counts: Counts, least: int, allowed: Mask) -> Counts | None:
    """Move samples from clients above `least` to clients below it; a receiver only gets classes it is `allowed`.

    A receiver first gets more of its largest class, which keeps its mixture; then any allowed class.
    """
    counts, (clients, classes) = counts.copy(), counts.shape
    turn = (np.arange(classes) + np.arange(clients)[:, None]) % classes / classes  # spreads ties over the classes
    most = np.where(allowed, counts + turn, -1).argmax(1)
    for wanted in (np.arange(classes) == most[:, None], allowed):
        _move(counts, least, wanted)
    for _ in range(EXCHANGES):
        if (counts.sum(1) >= least).all():
            return counts
        if not _exchange(counts, least, allowed):
            break
    return None


def _move(counts: Counts, least: int, wanted: Mask) -> None:
    """In place, class by class: each client above `least` gives in proportion to what it can spare."""
    spare = counts.sum(1) - least
    for k in range(counts.shape[1]):
        give = np.minimum(counts[:, k], spare).clip(0)
        take = np.where(wanted[:, k], -spare, 0).clip(0)
        moved = min(give.sum(), take.sum())
        change = _ration(take, moved) - _ration(give, moved)
        counts[:, k] += change
        spare += change


def _ration(limits: NDArray[np.int64], n: int) -> NDArray[np.int64]:
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
    gives, takes = [(donor, k)], []
    while k >= 0:
        client, passed = receiver[k]
        takes.append((client, k))
        gives.append((client, passed))
        k = passed
    gives.pop()  # the last client on the path keeps what it gets
    n = min(most, *(counts[cell] for cell in gives))
    for giving, taking in zip(gives, takes, strict=True):
        counts[giving] -= n
        counts[taking] += n
