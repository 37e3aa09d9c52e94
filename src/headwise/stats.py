"""How certain a comparison is. Imports no torch.

Methods on the same federation: intervals of their differences over draws of the partition, seeds and clients.
Methods are compared on the same cells: a draw of the partition, a seed, a client. Each statistic of a method (its mean
client, its worst tenth, the clients that are worse off than with local training) is one number over all cells, and its
variance comes from leaving out one draw after the other: the jackknife. Clients made by a partition are drawn anew with
each draw, so leaving out draws also leaves out clients; clients that stay the same in all draws (hospitals) are left
out in turn as well, and both variances are added. The interval is Student's, because three or five draws are few: a
percentile bootstrap over five draws covers 83 % where it promises 95 (docs/decisions/0026).

Methods over several federations: ranks, which make federations comparable whose scores are not, Wilcoxon's signed-rank
test and Holm's rule. The test is exact: its distribution is counted, not approximated, since there are few federations.
With few federations it can show little: with ten, no p-value is below 0.002.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .errors import ConfigError

Array = NDArray[np.float64]
Aggregate = Callable[[Array, Array], float]
"""combines the clients' scores into one, given their weights"""
Statistic = Callable[[Array, Array], Array]
"""from [methods, draws, seeds, clients] scores, NaN where there is none, and [draws, clients] weights to one number per
method, or of whatever is asked"""
GROUPS = 50
"""more clients than this are left out in groups"""
EQUAL = 0.005
"""differences up to half a point make no difference in practice"""
FEW = 5
"""intervals from fewer draws are wide, and depend on normal differences"""
SAMPLES = 20_000
MOST_DRAWS = 1000
"""that a sentence asks for"""


class Interval(NamedTuple):
    """An estimate and its 95 % interval; the bounds are NaN if nothing was repeated."""

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Cells:
    """The scores of several methods on the same draws, seeds and clients."""

    scores: Mapping[str, Array]
    """[draws, seeds, clients] by method, NaN where a client has none"""
    weights: Array
    """[draws, clients]: test samples, or ones for the mean client"""
    same_clients: bool = False
    """whether client k is the same in all draws, as hospitals are"""
    aggregate: Aggregate | None = None
    """how clients become one number; by default, the weighted mean"""
    more_is_better: bool = True

    def __post_init__(self) -> None:
        shapes = {scores.shape for scores in self.scores.values()}
        if len(shapes) != 1 or len(shape := shapes.pop()) != 3 or self.weights.shape != (shape[0], shape[2]):
            raise ConfigError("methods can only be compared on the same draws, seeds and clients.")

    @property
    def draws(self) -> int:
        return len(self.weights)

    @property
    def seeds(self) -> int:
        return self._stack.shape[2]

    @cached_property
    def _stack(self) -> Array:
        """[methods, draws, seeds, clients]"""
        return np.stack([*self.scores.values()])

    @property
    def repeated(self) -> tuple[int, ...]:
        """The axes of the scores whose levels are left out in turn: what an interval covers."""
        _, draws, seeds, clients = self._stack.shape
        if draws > 1:
            return (1, 3) if self.same_clients and clients > 1 else (1,)
        return tuple(axis for axis, levels in ((2, seeds), (3, clients)) if levels > 1)

    def estimate(self, statistic: Statistic) -> Estimates:
        """The statistic of all cells, and how much it varies."""
        parts = [_jackknife(statistic, self._stack, self.weights, axis) for axis in self.repeated]
        return Estimates(statistic(self._stack, self.weights), tuple(parts))

    @cached_property
    def means(self) -> Estimates:
        """One mean per method, in the order of `scores`."""
        return self.estimate(partial(mean_of_draws, aggregate=self.aggregate or weighted_mean))

    def mean(self, method: str) -> Interval:
        return self.means.contrast({[*self.scores].index(method): 1.0})

    @cached_property
    def ranking(self) -> list[str]:
        """The methods by their means, the best first."""
        return sorted(self.scores, key=lambda name: -self._sign * self.mean(name).value)

    def difference(self, one: str, other: str) -> Interval:
        """How far one method is ahead of another."""
        return self.means.contrast(self._lead(one, other))

    def standard_error(self, one: str, other: str) -> float:
        """Of their difference; 0 if nothing was repeated."""
        return self.means.moments(self._lead(one, other))[1] ** 0.5

    def _lead(self, one: str, other: str) -> dict[int, float]:
        names = [*self.scores]
        lead = {names.index(one): self._sign}
        lead[names.index(other)] = lead.get(names.index(other), 0.0) - self._sign  # zero if both are the same
        return lead

    @property
    def _sign(self) -> float:
        return 1.0 if self.more_is_better else -1.0

    def worst_tenth(self, method: str) -> Interval:
        """The mean of the worst tenth of the clients of a draw, at least one."""
        k = [*self.scores].index(method)
        worst = self.estimate(lambda scores, weights: _worst_tenth(self._sign * scores[k : k + 1]))
        return worst.contrast({0: self._sign})

    def share_worse_off(self, method: str, baseline: str) -> Interval:
        """The share of clients that do worse with the method than with the baseline."""
        names = [*self.scores]
        one = names.index(method)
        other = names.index(baseline)
        share = self.estimate(
            lambda scores, weights: _share_below(self._sign * (scores[one] - scores[other]))
        ).contrast({0: 1.0})
        return Interval(share.value, max(share.low, 0.0), min(share.high, 1.0))

    def best_probabilities(self, equal: float = 0.0) -> dict[str, float]:
        """How probable it is that a method is best, or at most `equal` behind the best."""
        samples = self._sign * self.means.sample()
        near = samples >= samples.max(1, keepdims=True) - equal
        return dict(zip(self.scores, near.mean(0).tolist(), strict=True))

    def not_worse_than_best(self, equal: float = EQUAL) -> list[str]:
        """The methods that can't be told apart from the best one, which is the first.

        A method is told apart if it is behind, at 5 % by Holm's rule over all of them, and by more than `equal`.
        """
        best, *others = self.ranking
        p_values = adjust_by_holm({other: self._p_value(best, other) for other in others})
        return [best, *(o for o in others if p_values[o] > 0.05 or self.difference(best, o).value <= equal)]

    def draws_to_separate(self, one: str, other: str) -> int | None:
        """How many draws it would take until the interval of their difference excludes zero, if the difference stays.

        None if one draw says nothing about others, if more than `MOST_DRAWS` would be needed, or with clients that are
        the same in all draws, where more draws may not be enough.
        """
        if self.repeated != (1,):
            return None
        value, variance, _ = self.means.moments(self._lead(one, other))
        return next(
            (
                n
                for n in range(self.draws, MOST_DRAWS + 1)
                if student_quantile(0.975, n - 1) * (variance * self.draws / n) ** 0.5 < abs(value)
            ),
            None,
        )

    def _p_value(self, one: str, other: str) -> float:
        """One-sided: that `one` is not ahead of `other`; 1 if nothing was repeated."""
        value, variance, df = self.means.moments(self._lead(one, other))
        if not df:
            return 1.0
        return 1 - student_cdf(value / variance**0.5, df) if variance else float(value <= 0)


@dataclass(frozen=True)
class Estimates:
    """Several numbers of the same cells, with the covariance from each axis that was repeated."""

    values: Array
    parts: tuple[tuple[Array, int], ...]
    """a covariance matrix and its degrees of freedom"""

    def moments(self, weights: Mapping[int, float]) -> tuple[float, float, float]:
        """A weighted sum of the numbers, its variance, and the degrees of freedom by Satterthwaite's rule."""
        c = np.zeros(len(self.values))
        c[[*weights]] = [*weights.values()]
        variances = [max(float(c @ covariance @ c), 0.0) for covariance, _ in self.parts]
        shares = sum(v * v / df for v, (_, df) in zip(variances, self.parts, strict=True))
        smallest = min((df for _, df in self.parts), default=0)
        return float(c @ self.values), sum(variances), sum(variances) ** 2 / shares if shares else smallest

    def contrast(self, weights: Mapping[int, float]) -> Interval:
        value, variance, df = self.moments(weights)
        half = student_quantile(0.975, df) * variance**0.5 if df else float("nan")
        return Interval(value, value - half, value + half)

    def sample(self, count: int = SAMPLES) -> Array:
        """[count, numbers] values that the truth may have: multivariate t, always the same ones."""
        rng = np.random.default_rng(0)
        samples = np.tile(self.values, (count, 1))
        for covariance, df in self.parts:
            width, directions = np.linalg.eigh(covariance)
            normal = rng.standard_normal((count, len(width))) * np.sqrt(np.maximum(width, 0.0))
            samples += normal @ directions.T / np.sqrt(rng.chisquare(df, (count, 1)) / df)
        return samples


def weighted_mean(scores: Array, weights: Array) -> float:
    return float((scores * weights).sum() / weights.sum())


def mean_of_draws(scores: Array, weights: Array, aggregate: Aggregate) -> Array:
    """Combines the clients of each draw and seed, then takes the mean over seeds and draws."""
    of_methods = [
        fmean(_combine(of_seed, weights[d], aggregate) for d, of_draw in enumerate(of_method) for of_seed in of_draw)
        for of_method in scores
    ]
    return np.array(of_methods)


def _combine(scores: Array, weights: Array, aggregate: Aggregate) -> float:
    known = ~np.isnan(scores)
    return aggregate(scores[known], weights[known])


def _worst_tenth(scores: Array) -> Array:
    ordered = np.sort(scores, axis=-1)  # NaN comes last
    count = np.maximum((~np.isnan(scores)).sum(-1, keepdims=True) // 10, 1)
    worst = np.where(np.arange(scores.shape[-1]) < count, ordered, np.nan)
    return np.nanmean(worst, axis=(1, 2, 3))


def _share_below(gains: Array) -> Array:
    """From [draws, seeds, clients] gains: a client counts by its mean over the seeds."""
    over_seeds = gains.mean(1)
    return np.array([(over_seeds < 0).sum() / (~np.isnan(over_seeds)).sum()])


def _jackknife(statistic: Statistic, scores: Array, weights: Array, axis: int) -> tuple[Array, int]:
    """The covariance of the statistic if the levels of one axis are drawn anew, and its degrees of freedom."""
    levels = scores.shape[axis]
    groups = min(levels, GROUPS) if axis == 3 else levels
    replicates: list[Array] = []
    for group in range(groups):
        keep: Sequence[int] = [k for k in range(levels) if k % groups != group]
        rest = weights if axis == 2 else weights[keep] if axis == 1 else weights[:, keep]
        replicates.append(statistic(np.take(scores, keep, axis), rest))
    deviations = np.stack(replicates) - np.mean(replicates, axis=0)
    return (groups - 1) / groups * deviations.T @ deviations, groups - 1


def rank(scores: Sequence[float]) -> Array:
    """1 for the largest; those that are equal share the mean of their ranks, NaN shares the last ones."""
    values = np.where(np.isnan(scores), -np.inf, scores)
    above = (values[None, :] > values[:, None]).sum(1)
    equal = (values[None, :] == values[:, None]).sum(1)
    return above + (equal + 1) / 2


def signed_rank_p(differences: Sequence[float]) -> float:
    """The two-sided p-value of paired differences around zero; zeros are left out, equal sizes share ranks."""
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
    """The p-values adjusted for their number: with the usual 0.05, the chance of any false positive stays at 5 %."""
    adjusted: dict[str, float] = {}
    largest = 0.0
    for k, name in enumerate(sorted(p_values, key=lambda n: p_values[n])):
        largest = max(largest, min(1.0, p_values[name] * (len(p_values) - k)))
        adjusted[name] = largest
    return {name: adjusted[name] for name in p_values}


def student_cdf(t: float, df: float) -> float:
    """Probability of a value of at most `t` with `df` degrees of freedom; the base install has no SciPy."""
    tail = 0.5 * _incomplete_beta(df / (df + t * t), df / 2, 0.5)
    return 1 - tail if t > 0 else tail


def student_quantile(probability: float, df: float) -> float:
    """The value that is not exceeded with this probability, by bisection."""
    if probability < 0.5:
        return -student_quantile(1 - probability, df)
    low, high = 0.0, 1.0
    while student_cdf(high, df) < probability:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if student_cdf(middle, df) < probability else (low, middle)
    return high


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function, by Lentz's continued fraction."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly
        return 1 - _incomplete_beta(1 - x, b, a)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x) - math.log(a)
    )
    tiny = 1e-300
    value = 1.0
    c = 1.0
    d = 0.0
    for i in range(500):
        m = i // 2
        if i == 0:
            term = 1.0
        elif i % 2 == 0:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1 / (1 + term * d or tiny)
        c = 1 + term / c or tiny
        value *= c * d
        if abs(1 - c * d) < 1e-15:
            break
    return front * (value - 1)
