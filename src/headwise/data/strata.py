"""A class for each sample, whatever the task: by it, partitions divide samples, and pictures show who holds what."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..settings.options import TaskName

BINS = 10


class Strata(NamedTuple):
    """The class of each sample, and the classes' names."""

    labels: NDArray[np.int64]
    names: tuple[str, ...]


def strata(task: TaskName, y: NDArray[Any], names: tuple[str, ...]) -> Strata:
    """Classes; the first label; which tenth the first quantity is in; the class of most pixels beside class 0."""
    if task == "classification":
        return Strata(y, names)
    if task == "multilabel":
        some = y > 0
        return Strata(np.where(some.any(1), some.argmax(1), len(names)), (*names, "no label"))
    if task == "segmentation":
        counts = np.stack([(y == k).sum((1, 2)) for k in range(1, len(names))], axis=1)
        return Strata(np.where(counts.any(1), counts.argmax(1) + 1, 0), names)
    edges = np.unique(np.quantile(y[:, 0], np.arange(1, BINS) / BINS))
    told = [f"{e:.4g}" for e in edges]
    between = [f"{a} to {b}" for a, b in pairwise(told)]
    return Strata(np.searchsorted(edges, y[:, 0], side="right"), (f"below {told[0]}", *between, f"from {told[-1]}"))
