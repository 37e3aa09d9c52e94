"""Student's t distribution, since the base install has no SciPy."""

from __future__ import annotations

import math


def cdf(t: float, df: float) -> float:
    """Probability of a value of at most `t` with `df` degrees of freedom."""
    tail = 0.5 * _incomplete_beta(df / (df + t * t), df / 2, 0.5)
    return 1 - tail if t > 0 else tail


def quantile(probability: float, df: float) -> float:
    """The value that is not exceeded with this probability, by bisection."""
    if probability < 0.5:
        return -quantile(1 - probability, df)
    low, high = 0.0, 1.0
    while cdf(high, df) < probability:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if cdf(middle, df) < probability else (low, middle)
    return high


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by Lentz's continued fraction."""
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
