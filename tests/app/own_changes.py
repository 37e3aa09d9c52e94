"""Changes to training samples, as a user would write them."""

from __future__ import annotations

import torch
from torch import Tensor


def noisy(x: Tensor, rng: torch.Generator) -> Tensor:
    return x + 0.1 * torch.randn(x.shape, generator=rng)


def mixed(x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """In place, which must not touch the client's samples."""
    x *= 1 + torch.rand(len(x), 1, generator=rng)
    return x, y


def longer(x: Tensor, rng: torch.Generator) -> Tensor:
    return torch.cat([x, x])


def broken(x: Tensor, rng: torch.Generator) -> Tensor:
    raise ZeroDivisionError("oh")


def careless(x: Tensor, rng: torch.Generator) -> Tensor:
    return x + torch.rand(())


def a_list(x: Tensor, rng: torch.Generator) -> list[float]:
    return x.tolist()
