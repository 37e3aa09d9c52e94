"""Who takes part in a round. It depends on the seed and the round alone, so every method sees the same clients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ..seeds import seed_of
from ..settings.options import Sampling


def sample(sampling: Sampling, clients: int, seed: int, t: int) -> list[int]:
    """The clients of round t, ascending; drawn without replacement, independently of all other rounds."""
    rng = torch.Generator().manual_seed(seed_of(seed, "sample", t))
    high = _share(sampling.ratio, clients)
    low = high if sampling.ratio_low is None else _share(sampling.ratio_low, clients)
    m = int(torch.randint(low, high + 1, (), generator=rng)) if low < high else high
    return sorted(torch.randperm(clients, generator=rng)[:m].tolist())


def measured(share: float, clients: int, seed: int) -> Sequence[int]:
    """The clients that are measured in every round, ascending."""
    if share == 1:
        return range(clients)
    rng = torch.Generator().manual_seed(seed_of(seed, "measured"))
    return sorted(torch.randperm(clients, generator=rng)[: _share(share, clients)].tolist())


def _share(ratio: float, clients: int) -> int:
    """M = max(floor(ratio N), 1); the tiny addend keeps 0.29 * 100 from becoming 28."""
    return max(math.floor(ratio * clients + 1e-9), 1)
