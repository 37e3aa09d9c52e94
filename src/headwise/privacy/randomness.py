"""Randomness for privacy: from the system's cryptographic source, or from the seed in tests."""

from __future__ import annotations

import os
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ..seeds import seed_of

PIECE = 2**20
"""random numbers drawn at a time"""


def source_of(source: Literal["system", "seed"], seed: int, client: int, t: int) -> torch.Generator | None:
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


def chosen(n: int, rate: float, rng: torch.Generator | None) -> Tensor:
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
