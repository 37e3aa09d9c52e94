"""The contract of a privacy mechanism. A plan carries one; they live in ``privacy/``."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from ..contract.benches import Local
from ..records import Record

if TYPE_CHECKING:  # a plan carries a mechanism
    from .client.client_bench import ClientBench
    from .plan import Plan


class Releases(NamedTuple):
    """What the accountant adds up: `steps` Gaussian releases, each on a Poisson sample at this rate."""

    noise: float
    rate: float
    steps: int

    def times(self, rounds: int) -> Releases:
        """The same releases in each of `rounds` rounds."""
        return self._replace(steps=self.steps * rounds)


@dataclass(frozen=True)
class Mechanism(ABC):
    """Protects a client's data against the server: decides what leaves, what it costs and what a method may use."""

    clip: float
    noise: float
    delta: float = 1e-5
    source: Literal["system", "seed"] = "system"

    name: ClassVar[str]
    """the `privacy.mechanism` that selects it"""
    unit: ClassVar[str]
    """the `privacy.level` it implements: whose data it protects"""
    messages: ClassVar[tuple[type[Record], ...]]
    """the records it can protect"""
    relation: ClassVar[str]
    """which two data sets epsilon makes indistinguishable"""
    hides_sizes: ClassVar[bool]
    """whether even the number of a client's samples stays secret"""
    protects: ClassVar[bool] = True
    """False if there is nothing to account for; otherwise the server never learns who holds which classes"""

    @abstractmethod
    def protect(self, down: Record, up: Record, *, classes: int, seed: int, client: int, t: int) -> Record:
        """The message as it leaves the client; raises `AccountingError` if its sensitivity is unknown."""

    @abstractmethod
    def bench(self, plan: Plan, local: ClientBench, kind: str) -> Local:
        """The client's bench as the method sees it whenever its results may reach the server."""

    @abstractmethod
    def cost(self, plan: Plan, client: int) -> Releases:
        """What one round reveals about this client."""


class Unprotected(Mechanism):
    name = "none"
    unit = "nobody"
    messages = (Record,)
    relation = "none"
    hides_sizes = False
    protects = False

    def protect(self, down: Record, up: Record, *, classes: int, seed: int, client: int, t: int) -> Record:
        return up

    def bench(self, plan: Plan, local: ClientBench, kind: str) -> Local:
        return local

    def cost(self, plan: Plan, client: int) -> Releases:
        return Releases(0.0, 1.0, 1)  # a release without noise, which has no epsilon


UNPROTECTED = Unprotected(math.inf, 0.0)
