"""The order of a client's samples in training."""

from __future__ import annotations

import math

import torch
from torch import Tensor

ROW = 1024  # a batch larger than the client's data is padded to this at most, whatever size a user asks for


def batches_in(n: int, size: int, *, drop_last: bool) -> int:
    """Batches per epoch of `n` samples."""
    return n // size if drop_last else -(-n // size)


def shuffled(n: int, size: int, epochs: float, *, drop_last: bool, rng: torch.Generator) -> Tensor:
    """[steps, size]: the indices of each batch, a short one padded with -1; each epoch has a new order."""
    steps = math.ceil(epochs * batches_in(n, size, drop_last=drop_last) - 1e-9)  # `train.steps` may have rounded up
    full, size = n % size == 0, min(size, max(n, ROW))
    orders = [torch.randperm(n, generator=rng) for _ in range(math.ceil(epochs))]
    if not full:
        orders = [torch.cat([order, torch.full((-n % size,), -1)]) for order in orders]
    end = -1 if drop_last and not full else None
    rows = [order.view(-1, size)[:end] for order in orders]
    found = torch.cat(rows) if len(rows) > 1 else rows[0] if rows else torch.empty(0, size, dtype=torch.int64)
    return found[:steps]
