"""What networks say about samples, in large passes without gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


@torch.no_grad()
def passed(network: Callable[[Tensor], Tensor], x: Tensor, batch: int) -> Tensor:
    """The network's output for all rows of `x`, `batch` of them at a time.

    They are one client's: what a network says about a sample may depend on the samples beside it, in its last bits.
    """
    if isinstance(network, nn.Module):
        network.eval()
    return torch.cat([network(part) for part in x.split(batch)])
