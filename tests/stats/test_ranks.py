"""Ranks, Wilcoxon's test and Holm's rule against SciPy and against counting by hand."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats

from headwise.stats.ranks import adjust_by_holm, rank, signed_rank_p


def test_ranks_are_those_of_scipy() -> None:
    scores = [0.3, 0.9, 0.3, 0.1, 0.9, 0.5]
    assert rank(scores).tolist() == stats.rankdata([-s for s in scores]).tolist()


def test_nan_shares_the_last_ranks() -> None:
    assert rank([float("nan"), 0.2, float("nan"), 0.1]).tolist() == [3.5, 1, 3.5, 2]


@pytest.mark.parametrize("n", [1, 4, 9, 25])
def test_without_ties_the_p_value_is_that_of_scipy(n: int) -> None:
    d = np.random.default_rng(n).normal(0.4, 1, n)
    assert signed_rank_p(d.tolist()) == pytest.approx(stats.wilcoxon(d, method="exact").pvalue, abs=1e-12)


@pytest.mark.parametrize("d", [[1, 1, -1, 2, 3], [0.5, -0.5, 0.5, 0.5], [2, 2, 2, 2, 2, 2], [-1, 1]])
def test_with_ties_the_p_value_is_counted_over_all_signs(d: list[float]) -> None:
    sizes = stats.rankdata(np.abs(d))
    sums = [sum(r for r, sign in zip(sizes, signs, strict=True) if sign) for signs in product([0, 1], repeat=len(d))]
    own = sum(r for r, x in zip(sizes, d, strict=True) if x > 0)
    tail = min(np.mean([s <= own for s in sums]), np.mean([s >= own for s in sums]))
    assert signed_rank_p(d) == pytest.approx(min(1.0, 2 * tail))


def test_zeros_say_nothing() -> None:
    assert signed_rank_p([0.0, 0.0]) == 1.0
    assert signed_rank_p([0.0, 1.0, 2.0, -3.0]) == signed_rank_p([1.0, 2.0, -3.0])


def test_holm_multiplies_the_smallest_most_and_keeps_the_order() -> None:
    assert adjust_by_holm({"a": 0.01, "b": 0.5, "c": 0.02}) == pytest.approx({"a": 0.03, "b": 0.5, "c": 0.04})
    assert adjust_by_holm({"a": 0.03, "b": 0.02}) == pytest.approx({"a": 0.04, "b": 0.04})
