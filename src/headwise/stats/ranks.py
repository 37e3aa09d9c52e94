"""Comparisons over several federations: ranks, Wilcoxon's signed-rank test, Holm's rule.

Ranks make federations comparable whose scores are not. The test is exact: its distribution is counted, not
approximated, since there are few federations. It can say little with few of them: with ten, no p-value is below 0.002.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def rank(scores: Sequence[float]) -> Array:
    """1 for the largest; those that are equal share the mean of their ranks, NaN shares the last ones."""
    values = np.where(np.isnan(scores), -np.inf, scores)
    above = (values[None, :] > values[:, None]).sum(1)
    equal = (values[None, :] == values[:, None]).sum(1)
    return above + (equal + 1) / 2


def signed_rank_p(differences: Sequence[float]) -> float:
    """The two-sided p-value that paired differences lie around zero; zeros are left out, equal sizes share ranks."""
    d = np.array([x for x in differences if x])
    if not d.size:
        return 1.0
    halves = 2 * (len(d) + 1 - rank([abs(x) for x in d]))  # of ranks, so that all are whole
    doubled = np.rint(halves).astype(int)
    counts = np.ones(1)
    for r in doubled:  # the number of ways to reach each sum of ranks
        longer = np.zeros(len(counts) + r)
        longer[: len(counts)] += counts
        longer[r:] += counts
        counts = longer
    total = int(doubled[d > 0].sum())
    tail = min(counts[: total + 1].sum(), counts[total:].sum()) / counts.sum()
    return float(min(1.0, 2 * tail))


def adjust_by_holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Each p-value as large as it must be so that, of all of them, one below 0.05 is wrong in 5 % of cases."""
    adjusted: dict[str, float] = {}
    largest = 0.0
    for k, name in enumerate(sorted(p_values, key=lambda n: p_values[n])):
        largest = max(largest, min(1.0, p_values[name] * (len(p_values) - k)))
        adjusted[name] = largest
    return {name: adjusted[name] for name in p_values}
