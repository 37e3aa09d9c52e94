"""Chooses the kernel for a training phase."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from ...tasks.base import Objective
from ...tasks.classification import CROSS_ENTROPY
from .base import Kernel, Rates
from .chain import Chain
from .descent import Descent
from .layers import chain_of
from .native.kernel import Native
from .plain import PlainKernel
from .stacked import Stacked


def choose(
    network: nn.Module,
    parts: Sequence[nn.Module],
    loss: Callable[[Tensor, Tensor], Tensor] | None,
    rates: Rates,
    *,
    models: Sequence[nn.Module],
    project: Callable[[], None] | None = None,
    fast: bool = True,
    objective: Objective = CROSS_ENTROPY,
) -> Kernel:
    """The kernel for descent on `parts`, with the rest of `models` frozen.

    Without a `loss`, it is the objective's, of the network's output. Fast kernels only exist for that, without
    clipping or projection; everything else uses autograd.
    """
    usual = fast and loss is None and objective.flat and project is None and rates.clip is None
    if usual and objective.usual and (native := Native.of(network, parts, rates)):
        return native
    if usual and (layers := chain_of(network, parts)):
        return Stacked(layers, rates, objective)
    descent = Descent([p for part in parts for p in part.parameters()], **rates._asdict())
    if usual and (chain := Chain.of(network, descent, objective)):
        return chain
    return PlainKernel(models, parts, loss or (lambda x, y: objective.loss(network(x), y)), descent, project)
