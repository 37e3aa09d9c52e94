"""Who takes part in a round. It depends on the seed and the round alone, so every method sees the same clients."""

from __future__ import annotations

import math

import torch

from ..seeds import seed_of
from ..settings.options import Sampling
from .plan import Plan


def chosen_clients(plan: Plan, t: int) -> list[int]:
    """The clients of round t: drawn from all, or from those that the trace names."""
    there = plan.trace[t - 1] if plan.trace else range(len(plan.data))
    return [there[k] for k in sample(plan.experiment.sampling, len(there), plan.experiment.seed, t)]


def sample(sampling: Sampling, clients: int, seed: int, t: int) -> list[int]:
    """The clients of round t, ascending; drawn without replacement, independently of all other rounds."""
    if not clients:
        return []
    rng = torch.Generator().manual_seed(seed_of(seed, "sample", t))
    high = _share(sampling.ratio, clients)
    low = high if sampling.ratio_low is None else _share(sampling.ratio_low, clients)
    m = int(torch.randint(low, high + 1, (), generator=rng)) if low < high else high
    return sorted(torch.randperm(clients, generator=rng)[:m].tolist())


def _share(ratio: float, clients: int) -> int:
    """M = max(floor(ratio N), 1); the tiny addend keeps 0.29 * 100 from becoming 28."""
    return max(math.floor(ratio * clients + 1e-9), 1)
