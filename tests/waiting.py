"""How tests wait, and in which order they begin: a slow or busy machine takes its time, and is no failure."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

PATIENCE = 600.0
"""seconds after which what should have come is given up: no measure of speed, but nothing waits for ever"""

T = TypeVar("T")


def until(true: Callable[[], T], what: str) -> T:
    """Wait for something; what it returned in the end."""
    end = time.monotonic() + PATIENCE
    while not (found := true()):
        assert time.monotonic() < end, what
        time.sleep(0.05)
    return found


def slow_first(slow: Sequence[T], rest: Sequence[T], workers: int) -> list[T]:
    """An order in which each worker begins with its share of the slow ones.

    xdist gives every worker a stretch of the list, and later lets idle ones steal from the ends of others' stretches.
    """
    order: list[T] = []
    left = [*rest]
    for k in range(workers):
        share = slow[k::workers]
        size = (len(slow) + len(rest) - len(order)) // (workers - k)
        others = max(0, size - len(share))
        order += [*share, *left[:others]]
        del left[:others]
    return order + left
