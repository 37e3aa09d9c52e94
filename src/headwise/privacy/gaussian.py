"""Client-level mechanisms: clip a client's message and add noise to it.

Whatever the data, two clipped messages differ by at most twice the clip: that is the sensitivity of a message. Nothing
else about it may depend on the data.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from ..contract.benches import Local
from ..contract.method import record_types
from ..engine.client.client_bench import ClientBench
from ..engine.mechanism import Mechanism, Releases
from ..engine.plan import Plan
from ..params import Params
from ..records import Nothing, Record
from .randomness import gaussian, source_of


class ClientGaussian(Mechanism):
    """Adds Gaussian noise to a client's only message of a round."""

    unit = "client"
    relation = "all data of one client replaced by any other"
    hides_sizes = True

    @abstractmethod
    def noisy(self, down: Record, up: Record, classes: int, rng: torch.Generator | None) -> Record:
        """The message, clipped and with noise."""

    def protect(self, down: Record, up: Record, *, classes: int, seed: int, client: int, t: int) -> Record:
        """The message with this client's and round's noise; an empty message reveals nothing and stays empty."""
        return up if isinstance(up, Nothing) else self.noisy(down, up, classes, source_of(self.source, seed, client, t))

    def bench(self, plan: Plan, local: ClientBench, kind: str) -> Local:
        """The bench itself: everything that leaves has noise on it, so a method may use every primitive."""
        return local

    def cost(self, plan: Plan, client: int) -> Releases:
        """One message. Sampling clients earns no credit: the server knows who takes part."""
        return Releases(self.noise, 1.0, messages_of(plan))

    def clipped(self, value: Params, rng: torch.Generator | None) -> Params:
        """Scaled down to norm `clip` if it is longer, with noise on every number."""
        norm = float(value.map(Tensor.double).sq_norm().sqrt())
        shrink = min(1.0, self.clip / norm) if norm > 0 else 1.0
        if not norm < float("inf"):  # a diverged model would reveal that it did: send zeros
            value, shrink = value.zeros(), 1.0
        scale = self.noise * 2 * self.clip
        return value.map(lambda d: d * shrink + (scale * gaussian(d.shape, rng)).to(d.dtype))


def messages_of(plan: Plan) -> int:
    """Messages that a client sends per round: one or none."""
    return 0 if record_types(type(plan.method)).up is Nothing else 1
