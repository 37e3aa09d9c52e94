"""Who takes part in a round. It depends on the seed and the round alone, so every method sees the same clients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ..seeds import seed_of
from ..settings.experiment import Experiment
from ..settings.options import Sampling

if TYPE_CHECKING:
    from .plan import Plan


def sample(sampling: Sampling, clients: int, seed: int, t: int) -> list[int]:
    """The clients of round t, ascending; drawn without replacement, independently of all other rounds."""
    if not clients:
        return []
    rng = torch.Generator().manual_seed(seed_of(seed, "sample", t))
    high = share_of(sampling.ratio, clients)
    low = high if sampling.ratio_low is None else share_of(sampling.ratio_low, clients)
    m = int(torch.randint(low, high + 1, (), generator=rng)) if low < high else high
    return sorted(torch.randperm(clients, generator=rng)[:m].tolist())


def measured(share: float, clients: Sequence[int], seed: int) -> Sequence[int]:
    """Those of these clients that are measured in every round, ascending."""
    if share == 1:
        return clients
    rng = torch.Generator().manual_seed(seed_of(seed, "measured"))
    drawn = torch.randperm(len(clients), generator=rng)[: share_of(share, len(clients))]
    return sorted(clients[k] for k in drawn.tolist())


def newcomers(experiment: Experiment, clients: int) -> list[int]:
    """The clients that never train, ascending: at least one, if any are wanted; the same for every method."""
    share = experiment.evaluate.new_clients
    rng = torch.Generator().manual_seed(seed_of(experiment.seed, "new clients"))
    return sorted(torch.randperm(clients, generator=rng)[: share_of(share, clients)].tolist()) if share else []


def participants(plan: Plan, t: int) -> list[int]:
    """The clients that train in round t: drawn from those that may, or that the trace names, absent or not."""
    outside = set(newcomers(plan.experiment, len(plan.data)))
    there = plan.trace[t - 1] if plan.trace else range(len(plan.data))
    pool = [c for c in there if c not in outside] if outside else there
    drawn = sample(plan.experiment.sampling, len(pool), plan.experiment.seed, plan.at(t))
    return [pool[i] for i in drawn if pool[i] not in plan.data.absent]


def share_of(ratio: float, clients: int) -> int:
    """M = max(floor(ratio N), 1); the tiny addend keeps 0.29 * 100 from becoming 28."""
    return max(math.floor(ratio * clients + 1e-9), 1)
