"""What happens to a message where it leaves a client: its change is clipped, and noise is added to it.

Whatever a client's data are, its clipped changes differ by at most twice the clip: that is the sensitivity of one
message. The number of its samples would tell something, too: all clients count the same.
"""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import Tensor

from ..averaging import Shared
from ..records import Record
from ..seeds import seed_of
from .options import Privacy

PIECE = 2**20
"""random numbers that are drawn at once"""


def leaving(privacy: Privacy, seed: int, client: int, t: int, down: Record, up: Record, n: int) -> tuple[Record, int]:
    """The message and the number of samples as the server gets them."""
    if privacy.clip is None:
        return up, n
    if not isinstance(down, Shared) or not isinstance(up, Shared):
        raise TypeError(f"{type(up).__name__} has no known sensitivity")
    change = up.w - down.w
    norm = float(change.map(Tensor.double).sq_norm().sqrt())
    shrink = min(1.0, privacy.clip / norm) if norm > 0 else 1.0
    if not norm < float("inf"):  # a model that diverged tells that it did: nothing may leave in its place
        change, shrink = change.zeros(), 1.0
    rng = None if privacy.source == "system" else torch.Generator().manual_seed(seed_of(seed, "privacy", client, t))
    scale = privacy.noise * 2 * privacy.clip
    return Shared(down.w + change.map(lambda d: d * shrink + (scale * gaussian(d.shape, rng)).to(d.dtype))), 1


def gaussian(shape: torch.Size, rng: torch.Generator | None) -> Tensor:
    """Standard normal numbers in double precision: from the system's cryptographic source, or this generator."""
    if rng is not None:
        return torch.randn(shape, generator=rng, dtype=torch.float64)
    count = shape.numel()
    pieces = [_secret(min(PIECE, count - at)) for at in range(0, count, PIECE)]
    return torch.from_numpy(np.concatenate(pieces or [np.empty(0)])).view(shape)


def _secret(count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Box and Muller's way from uniform numbers of 53 bits, of which none is zero."""
    bits = np.frombuffer(os.urandom(16 * count), dtype=np.uint64).reshape(2, count) >> np.uint64(11)
    radius, angle = (bits.astype(np.float64) + 0.5) / 2.0**53
    return np.sqrt(-2.0 * np.log(radius)) * np.cos(2.0 * np.pi * angle)
