"""`Faults`: what to do when a client fails, and which failures to inject."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from ..errors import ConfigError, nearest
from .fields import Count, Natural, Parsed, Positive

FAULTS = ("drop", "error", "slow", "twice", "stale", "nan", "inf", "names", "shapes", "dtypes", "norm", "samples")
"""what can be injected: a client does not answer, raises, is too slow, answers twice or for another round, or sends
values that are not finite, wrong names, shapes or types, a huge model, or a huge number of samples"""
STUDIES = {"fedah": "drop=0..0.9"}
"""faults from published studies, by name; FedAH: in each round a share of the clients drawn from [0.1, 1] is present"""


@dataclass(frozen=True)
class Inject(Parsed):
    """Injected faults: for each kind, the share of a round's clients that it affects."""

    shares: tuple[tuple[str, float, float], ...] = ()
    """kind, lowest and highest share; each round draws a share between the two"""

    @classmethod
    def parse(cls, value: Any, at: str) -> Self:
        """From a string such as ``drop=0.3,nan=0.05``; ``drop=0..0.9`` draws a new share in each round."""
        if not isinstance(value, str):
            raise ConfigError(f"{at} is {value!r}, but must be a string like drop=0.3,nan=0.05.")
        text = STUDIES.get(value, value)
        shares = tuple(_share_of(part.strip(), at) for part in text.split(",")) if text else ()
        if len({kind for kind, _, _ in shares}) < len(shares) or sum(high for _, _, high in shares) > 1 + 1e-9:
            raise ConfigError(
                f"{at} is {value!r}, but must name each kind at most once, with shares that add up to at most 1."
            )
        return cls(shares)

    def plain(self) -> str:
        return ",".join(f"{k}={low:g}" if low == high else f"{k}={low:g}..{high:g}" for k, low, high in self.shares)


def _share_of(part: str, at: str) -> tuple[str, float, float]:
    kind, _, share = part.partition("=")
    if kind not in FAULTS:
        raise ConfigError(f"{at} names {kind!r}: {nearest(kind, (*FAULTS, *STUDIES))}")
    number = r"(0|1|0?\.\d{1,9}|[01]\.0)"
    found = re.fullmatch(rf"{number}(?:\.\.{number})?", share, re.ASCII)
    low, high = (float(found[1]), float(found[2] or found[1])) if found else (1.0, 0.0)
    if low > high:
        raise ConfigError(f"{at} has {part!r}, but the share must be from 0 to 1, like {kind}=0.3 or {kind}=0..0.9.")
    return kind, low, high


@dataclass(frozen=True)
class Faults:
    """What to do when a client fails, and which failures to inject."""

    on_failure: Literal["stop", "skip", "retry"] | None = None
    """stop: end the run, and accept replies unchecked; skip: check replies, and continue without the clients that
    failed; retry: like skip, but first ask silent clients again; none: stop, or skip if faults are injected"""
    retries: Count = 2
    """how many times retry asks again"""
    min_replies: Natural = 1
    """replies that a round needs; with fewer, the run ends"""
    deadline: Positive | None = None
    """seconds a client may take; results then depend on the machine"""
    max_norm: Positive | None = None
    """largest allowed Euclidean norm of a client's message"""
    max_samples: Count = 10**7
    """largest number of training samples a client may claim"""
    inject: Inject = field(default_factory=Inject)
    """faults to inject, as shares of a round's clients: drop=0.3,nan=0.05,slow=0.1"""

    @property
    def reaction(self) -> Literal["stop", "skip", "retry"]:
        """`on_failure` with its default filled in."""
        return self.on_failure or ("skip" if self.inject.shares else "stop")
