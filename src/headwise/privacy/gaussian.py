"""Client-level mechanisms: clip a client's message and add Gaussian noise to it.

Whatever the data, two clipped messages differ by at most twice the clip: that is the sensitivity of a message. Nothing
else about it may depend on the data. The noise comes from the system's cryptographic source; in tests, from the seed.
"""

from __future__ import annotations

import dataclasses
import os
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from ..contract.averaging import Shared
from ..contract.benches import ClassMeans, Local
from ..contract.method import record_types
from ..engine.client.client_bench import ClientBench
from ..engine.mechanism import Mechanism, Releases
from ..engine.plan import Plan
from ..errors import AccountingError
from ..params import Params
from ..records import Nothing, Record, fields_of
from ..seeds import seed_of


class _Fence:
    """Refuses whatever is not on the list, so a new primitive is refused until somebody allows it."""

    def __init__(self, inner: object, allows: Collection[str], refusal: Callable[[str], str]) -> None:
        self._inner = inner
        self._allows = allows
        self._refusal = refusal

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in dir(self._inner):
            raise AttributeError(f"a client's bench has no {name!r}")
        if name not in self._allows:
            raise AccountingError(self._refusal(name))
        return getattr(self._inner, name)


def restrict_bench(
    local: Local, allows: Collection[str], instead: Mapping[str, Any], refusal: Callable[[str], str]
) -> Local:
    """This bench with only these primitives, some replaced by those in `instead`; `refusal(name)` words the error."""
    fence = _Fence(local, allows, refusal)
    vars(fence).update(instead)
    return cast(Local, fence)


PIECE = 2**20
"""random numbers drawn at a time"""


def noise_source(source: Literal["system", "seed"], seed: int, client: int, t: int) -> torch.Generator | None:
    """The generator of this client's noise in this round; None means the system's source."""
    if source == "system":
        return None
    return torch.Generator().manual_seed(seed_of(seed, "privacy", client, t))


def gaussian(shape: torch.Size, rng: torch.Generator | None) -> Tensor:
    """Standard normal numbers in double precision."""
    if rng is not None:
        return torch.randn(shape, generator=rng, dtype=torch.float64)
    count = shape.numel()
    pieces = [_normal(min(PIECE, count - at)) for at in range(0, count, PIECE)]
    return torch.from_numpy(np.concatenate(pieces or [np.empty(0)])).view(shape)


def poisson_sample(n: int, rate: float, rng: torch.Generator | None) -> Tensor:
    """Poisson sampling: indices below `n`, each drawn independently with probability `rate`."""
    drawn = torch.from_numpy(_uniform(1, n)[0]) if rng is None else torch.rand(n, generator=rng, dtype=torch.float64)
    return (drawn < rate).nonzero().flatten()


def _uniform(rows: int, count: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """53-bit numbers strictly between 0 and 1."""
    bits = np.frombuffer(os.urandom(8 * rows * count), dtype=np.uint64).reshape(rows, count) >> np.uint64(11)
    return (bits.astype(np.float64) + 0.5) / 2.0**53


def _normal(count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The Box-Muller transform of uniform numbers."""
    radius, angle = _uniform(2, count)
    return np.sqrt(-2.0 * np.log(radius)) * np.cos(2.0 * np.pi * angle)


class ClientGaussian(Mechanism):
    """Adds Gaussian noise to a client's only message of a round."""

    unit = "client"
    relation = "all data of one client replaced by any other"
    hides_sizes = True

    @abstractmethod
    def add_noise(self, down: Record, up: Record, classes: int, rng: torch.Generator | None) -> Record:
        """The message, clipped and with noise."""

    def protect(self, down: Record, up: Record, *, classes: int, seed: int, client: int, t: int) -> Record:
        """The message with this client's and round's noise; an empty message reveals nothing and stays empty."""
        return (
            up
            if isinstance(up, Nothing)
            else self.add_noise(down, up, classes, noise_source(self.source, seed, client, t))
        )

    def bench(self, plan: Plan, local: ClientBench, kind: str) -> Local:
        """The bench itself: everything that leaves has noise on it, so a method may use every primitive."""
        return local

    def cost(self, plan: Plan, client: int) -> Releases:
        """One message. Sampling clients earns no credit: the server knows who takes part."""
        return Releases(self.noise, 1.0, messages_of(plan))

    def clip_and_add_noise(self, value: Params, rng: torch.Generator | None) -> Params:
        """Scaled down to norm `clip` if it is longer, with noise on every number."""
        norm = float(value.map(Tensor.double).sq_norm().sqrt())
        shrink = min(1.0, self.clip / norm) if norm > 0 else 1.0
        if not norm < float("inf"):  # a diverged model would reveal that it did: send zeros
            value = value.zeros()
            shrink = 1.0
        scale = self.noise * 2 * self.clip
        return value.map(lambda d: d * shrink + (scale * gaussian(d.shape, rng)).to(d.dtype))


def messages_of(plan: Plan) -> int:
    """Messages that a client sends per round: one or none."""
    return 0 if record_types(type(plan.method)).up is Nothing else 1


class NoisyMeans(ClientGaussian):
    """Protects class means, as one vector, and hides which classes the client holds."""

    name = "noisy-means"
    messages = (ClassMeans,)

    def add_noise(self, down: Record, up: Record, classes: int, rng: torch.Generator | None) -> Record:
        assert isinstance(up, ClassMeans)  # as the method says in its bases
        rest = [f for f in fields_of(type(up)) if f not in ("labels", "means") and getattr(up, f) is not None]
        if rest:
            raise AccountingError(f"it sends {', '.join(rest)} besides class means, which can't be protected")
        held = up.labels >= 0
        means = up.means.new_zeros(classes, up.means.shape[1]).index_copy(0, up.labels[held].long(), up.means[held])
        noisy = self.clip_and_add_noise(Params(means=means), rng)["means"]
        return dataclasses.replace(up, labels=torch.arange(classes, dtype=torch.int32), means=noisy)


class NoisyModels(ClientGaussian):
    """Protects a shared model with the same parameters as the one sent to the client."""

    name = "noisy-models"
    messages = (Shared, Nothing)

    def add_noise(self, down: Record, up: Record, classes: int, rng: torch.Generator | None) -> Record:
        if isinstance(up, Shared) and isinstance(down, Shared):
            sent, received = ({name: t.shape for name, t in r.w.items()} for r in (up, down))
            if sent == received:
                return Shared(down.w + self.clip_and_add_noise(up.w - down.w, rng))
        raise AccountingError(f"what it sends ({', '.join(fields_of(type(up)))}) has no known sensitivity")
