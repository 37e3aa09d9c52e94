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
    whole: bool = True,
) -> Kernel:
    """The kernel for descent on `parts`, with the rest of `models` frozen.

    Without a `loss`, it is the objective's, of the network's output. Fast kernels only exist for that, without
    projection; everything else uses autograd. Two of them only know SGD, and need a feed whose samples are the same in
    every step: a `whole` one. Only the native one clips gradients.
    """
    usual = fast and loss is None and objective.flat and project is None
    at_once, clipping = usual and whole and rates.adam is None, rates.clip is not None
    if at_once and (native := Native.of(network, parts, rates, objective)):
        return native
    if at_once and not clipping and (layers := chain_of(network, parts)):
        return Stacked(layers, rates, objective)
    descent = Descent([p for part in parts for p in part.parameters()], **rates._asdict())
    if usual and not clipping and (chain := Chain.of(network, descent, objective)):
        return chain
    return PlainKernel(models, parts, loss or (lambda x, y: objective.loss(network(x), y)), descent, project)
