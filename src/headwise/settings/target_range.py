"""`TargetRange`: the lowest and highest value that a regression's targets can have, as its user declares them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

from ..errors import ConfigError
from .fields import Parsed


@dataclass(frozen=True)
class TargetRange(Parsed):
    """``[0, 350]`` for one target, ``[[0, 350], [10, 20]]`` for two."""

    pairs: tuple[tuple[float, float], ...]

    @classmethod
    def parse(cls, value: Any, at: str) -> Self:
        several = isinstance(value, list | tuple) and any(isinstance(pair, list | tuple) for pair in value)
        pairs: list[Any] = list(value) if several else [value]
        if not all(map(_is_pair, pairs)):
            raise ConfigError(
                f"{at} is {value!r}, but must be [lowest, highest], or a list with such a pair for each target."
            )
        return cls(tuple((float(low), float(high)) for low, high in pairs))

    def plain(self) -> list[list[float]]:
        return [list(pair) for pair in self.pairs]

    def scale(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """What targets are measured from and in: the middle and a quarter of the range, which make them -2 to 2."""
        return tuple((low + high) / 2 for low, high in self.pairs), tuple((high - low) / 4 for low, high in self.pairs)


def _is_pair(value: Any) -> bool:
    if not isinstance(value, list | tuple) or len(value) != 2:
        return False
    numbers = [v for v in value if isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v)]
    return len(numbers) == 2 and numbers[0] < numbers[1]
