"""Intervals over draws, seeds and clients: simulated coverage, and quantities computed by hand.

Ranks, Wilcoxon's test and Holm's rule against SciPy and against counting by hand.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats as scipy_stats

from headwise.errors import ConfigError
from headwise.stats import Cells, Interval, adjust_by_holm, rank, signed_rank_p, student_cdf, student_quantile

REPEATS = 1500


def simulate(rng: np.random.Generator, draws: int, seeds: int, clients: int, same_clients: bool = False) -> Cells:
    """Two methods, the first truly 1 point ahead; each reacts in its own way to a draw, a seed and a client."""
    scores = {}
    base = rng.normal(70, 5, (draws, 1, clients))
    for name, ahead in (("a", 1.0), ("b", 0.0)):
        of_draw = rng.normal(0, 1, (draws, 1, 1))
        of_seed = rng.normal(0, 0.5, (draws, seeds, 1))
        of_client = rng.normal(0, 3, (1 if same_clients else draws, 1, clients))
        scores[name] = base + ahead + of_draw + of_seed + of_client + rng.normal(0, 2, (draws, seeds, clients))
    return Cells(scores, np.ones((draws, clients)), same_clients)


@pytest.mark.parametrize(
    ("draws", "seeds", "clients", "same_clients", "low", "high"),
    [
        (5, 1, 20, False, 0.935, 0.965),
        (3, 1, 20, False, 0.935, 0.965),
        (5, 1, 20, True, 0.93, 0.98),
        (5, 1, 4, True, 0.93, 0.99),
        (1, 3, 20, False, 0.75, 0.88),  # no interval from one draw covers another one, and this is how much it lacks
    ],
)
def test_intervals_cover_the_truth_as_often_as_they_promise(
    draws: int, seeds: int, clients: int, same_clients: bool, low: float, high: float
) -> None:
    """1,500 simulations: the standard error of a share of 95 % is 0.6 points."""
    rng = np.random.default_rng(draws)
    intervals = [simulate(rng, draws, seeds, clients, same_clients).difference("a", "b") for _ in range(REPEATS)]
    assert low <= np.mean([i.low <= 1 <= i.high for i in intervals]) <= high


def test_the_interval_over_draws_is_students_of_the_means_of_draws() -> None:
    cells = simulate(np.random.default_rng(0), 5, 2, 7)
    means = (cells.scores["a"] - cells.scores["b"]).mean((1, 2))
    interval = cells.difference("a", "b")
    expected = scipy_stats.t.interval(0.95, 4, means.mean(), scipy_stats.sem(means))
    assert interval.value == pytest.approx(means.mean())
    assert (interval.low, interval.high) == pytest.approx(expected)
    mirrored = cells.difference("b", "a")
    assert mirrored.value == pytest.approx(-interval.value)
    assert (mirrored.low, mirrored.high) == pytest.approx((-interval.high, -interval.low))


def test_the_same_clients_in_all_draws_add_their_variance() -> None:
    cells = simulate(np.random.default_rng(0), 5, 1, 6, same_clients=True)
    gains = (cells.scores["a"] - cells.scores["b"])[:, 0]
    of_draws, of_clients = gains.mean(1).var(ddof=1) / 5, gains.mean(0).var(ddof=1) / 6
    total = of_draws + of_clients
    df = total**2 / (of_draws**2 / 4 + of_clients**2 / 5)
    half = scipy_stats.t.ppf(0.975, df) * math.sqrt(total)
    interval = cells.difference("a", "b")
    assert (interval.low, interval.high) == pytest.approx((gains.mean() - half, gains.mean() + half))


def test_clients_count_by_their_weights_and_absent_scores_do_not() -> None:
    scores = {"a": np.array([[[1.0, 0.0, np.nan]]]), "b": np.array([[[0.0, 0.0, np.nan]]])}
    cells = Cells(scores, np.array([[3.0, 1.0, 9.0]]))
    assert cells.mean("a").value == 0.75
    assert cells.difference("a", "b").value == 0.75


def test_one_cell_has_no_interval() -> None:
    cells = Cells({"a": np.ones((1, 1, 1)), "b": np.zeros((1, 1, 1))}, np.ones((1, 1)))
    interval = cells.difference("a", "b")
    assert interval.value == 1
    assert math.isnan(interval.low) and math.isnan(interval.high)
    assert not interval.excludes_zero
    assert cells.not_worse_than_best() == ["a", "b"]
    assert cells.draws_to_separate("a", "b") is None


def test_worse_off_and_the_worst_tenth() -> None:
    a = np.tile(np.arange(20.0), (2, 1, 1))
    b = a.copy()
    b[:, :, :5] += 1
    cells = Cells({"a": a, "b": b}, np.ones((2, 20)))
    assert cells.share_worse_off("a", "b") == Interval(0.25, 0.25, 0.25)
    assert cells.share_worse_off("b", "a") == Interval(0.0, 0.0, 0.0)
    assert cells.worst_tenth("a").value == 0.5  # of 0 and 1


def test_who_is_best_and_who_can_not_be_told_from_it() -> None:
    rng = np.random.default_rng(3)
    draws = rng.normal(0, 0.002, (5, 1, 1)), rng.normal(0, 0.002, (5, 1, 1)), rng.normal(0, 0.002, (5, 1, 1))
    names = ("best", "near", "far")
    levels = (0.9, 0.899, 0.8)
    scores = {n: np.full((5, 1, 4), v) + d for n, v, d in zip(names, levels, draws, strict=True)}
    cells = Cells(scores, np.ones((5, 4)))
    assert {*cells.not_worse_than_best()} == {"best", "near"}
    chances = cells.best_probabilities()
    assert sum(chances.values()) == pytest.approx(1)
    assert chances["far"] == 0
    assert cells.best_probabilities(equal=0.05)["near"] > 0.99


def test_the_probability_of_being_best_is_students() -> None:
    cells = simulate(np.random.default_rng(5), 4, 1, 10)
    means = (cells.scores["a"] - cells.scores["b"]).mean((1, 2))
    expected = scipy_stats.t.cdf(means.mean() / scipy_stats.sem(means), 3)
    assert cells.best_probabilities()["a"] == pytest.approx(expected, abs=0.015)  # 20,000 samples


def test_draws_to_separate() -> None:
    gains = np.array([0.5, 1.5, -0.5, 2.5, 1.0])[:, None, None] * np.ones((5, 1, 3))
    cells = Cells({"a": gains, "b": np.zeros_like(gains)}, np.ones((5, 3)))
    n = cells.draws_to_separate("a", "b")
    assert n is not None
    half = [scipy_stats.t.ppf(0.975, k - 1) * gains[:, 0, 0].std(ddof=1) / math.sqrt(k) for k in (n - 1, n)]
    assert half[1] < 1 <= half[0]


def test_many_clients_are_left_out_in_groups() -> None:
    rng = np.random.default_rng(0)
    scores = {"a": rng.normal(0, 1, (1, 1, 5000)), "b": np.zeros((1, 1, 5000))}
    interval = Cells(scores, np.ones((1, 5000))).difference("a", "b")
    half = 1.96 * scores["a"].std() / math.sqrt(5000)
    assert (interval.high - interval.low) / 2 == pytest.approx(half, rel=0.25)


def test_methods_are_compared_on_the_same_cells_only() -> None:
    with pytest.raises(ConfigError, match="same draws, seeds and clients"):
        Cells({"a": np.ones((2, 1, 3)), "b": np.ones((1, 1, 3))}, np.ones((2, 3)))


@pytest.mark.parametrize("df", [1, 2, 3.7, 4, 30, 1000])
def test_students_distribution(df: float) -> None:
    for t in (-8.0, -1.0, 0.0, 0.5, 3.0, 40.0):
        assert student_cdf(t, df) == pytest.approx(scipy_stats.t.cdf(t, df), abs=1e-10)
    for p in (0.01, 0.3, 0.5, 0.975, 0.999):
        assert student_quantile(p, df) == pytest.approx(scipy_stats.t.ppf(p, df), rel=1e-8, abs=1e-9)


def test_where_less_is_better() -> None:
    rng = np.random.default_rng(0)
    errors = {"a": rng.normal(1, 0.1, (5, 1, 20)), "b": rng.normal(2, 0.1, (5, 1, 20))}
    cells = Cells(errors, np.ones((5, 20)), more_is_better=False)
    assert cells.difference("a", "b").value == pytest.approx(1, abs=0.1)
    assert cells.not_worse_than_best() == ["a"]
    assert cells.best_probabilities()["a"] > 0.99
    assert cells.share_worse_off("a", "b").value == 0
    assert cells.worst_tenth("a").value == pytest.approx(np.sort(errors["a"], axis=-1)[:, :, -2:].mean())


def test_clients_are_combined_as_the_metric_says() -> None:
    scores = {"a": np.array([[[3.0, 4.0]]]), "b": np.array([[[0.0, 0.0]]])}
    cells = Cells(scores, np.array([[1.0, 1.0]]), aggregate=lambda v, n: float(np.sqrt((v**2 * n).sum() / n.sum())))
    assert cells.mean("a").value == pytest.approx(math.sqrt(12.5))


def test_a_method_is_not_ahead_of_itself() -> None:
    cells = simulate(np.random.default_rng(3), draws=4, seeds=1, clients=5)
    name = next(iter(cells.scores))
    assert cells.difference(name, name) == Interval(0.0, 0.0, 0.0)
    assert cells.standard_error(name, name) == 0


def test_ranks_are_those_of_scipy() -> None:
    scores = [0.3, 0.9, 0.3, 0.1, 0.9, 0.5]
    assert rank(scores).tolist() == scipy_stats.rankdata([-s for s in scores]).tolist()


def test_nan_shares_the_last_ranks() -> None:
    assert rank([float("nan"), 0.2, float("nan"), 0.1]).tolist() == [3.5, 1, 3.5, 2]


@pytest.mark.parametrize("n", [1, 4, 9, 25])
def test_without_ties_the_p_value_is_that_of_scipy(n: int) -> None:
    d = np.random.default_rng(n).normal(0.4, 1, n)
    assert signed_rank_p(d.tolist()) == pytest.approx(scipy_stats.wilcoxon(d, method="exact").pvalue, abs=1e-12)


@pytest.mark.parametrize("d", [[1, 1, -1, 2, 3], [0.5, -0.5, 0.5, 0.5], [2, 2, 2, 2, 2, 2], [-1, 1]])
def test_with_ties_the_p_value_is_counted_over_all_signs(d: list[float]) -> None:
    sizes = scipy_stats.rankdata(np.abs(d))
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
