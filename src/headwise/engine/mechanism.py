"""What the engine asks of a privacy mechanism: a plan carries one. They are in ``privacy/``, one file each."""

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
        """The same in each of so many rounds."""
        return self._replace(steps=self.steps * rounds)


@dataclass(frozen=True)
class Mechanism(ABC):
    """How a client's data are protected against the server: what leaves, what that costs, what a method may use."""

    clip: float
    noise: float
    delta: float = 1e-5
    source: Literal["system", "seed"] = "system"

    unit: ClassVar[str]
    """the `privacy.level` that it stands for: whose data it protects"""
    messages: ClassVar[tuple[type[Record], ...]]
    """the records that it can protect"""
    relation: ClassVar[str]
    """which two data sets epsilon says can't be told apart"""
    hides_sizes: ClassVar[bool]
    """whether not even the number of a client's samples may be told"""
    protects: ClassVar[bool] = True
    """false where there is nothing to account for; else the server never learns who holds which classes"""

    @abstractmethod
    def protect(self, down: Record, up: Record, *, classes: int, seed: int, client: int, t: int) -> Record:
        """The message as it leaves the client; `AccountingError` for one whose sensitivity is not known."""

    @abstractmethod
    def bench(self, plan: Plan, local: ClientBench, kind: str) -> Local:
        """The client's bench as a method sees it, wherever what it does may reach the server."""

    @abstractmethod
    def cost(self, plan: Plan, client: int) -> Releases:
        """What one round tells about this client."""


class Unprotected(Mechanism):
    """No protection: messages leave as they are."""

    unit = "nobody"
    messages = (Record,)
    relation = "none"
    hides_sizes = False
    protects = False

    def protect(self, down: Record, up: Record, *, classes: int, seed: int, client: int, t: int) -> Record:
        """The message itself."""
        return up

    def bench(self, plan: Plan, local: ClientBench, kind: str) -> Local:
        """The bench itself."""
        return local

    def cost(self, plan: Plan, client: int) -> Releases:
        """A release without noise, which has no epsilon."""
        return Releases(0.0, 1.0, 1)


UNPROTECTED = Unprotected(math.inf, 0.0)
