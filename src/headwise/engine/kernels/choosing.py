"""Chooses the kernel for a training phase."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from ...tasks.base import Objective
from ...tasks.classification import CROSS_ENTROPY
from .base import Kernel, Rates
from .descent import Descent
from .native.kernel import Native
from .plain import PlainKernel


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

    Without a `loss`, it is the objective's, of the network's output. Only for that is there a native kernel, for SGD
    without projection on a feed whose samples are the same in every step: a `whole` one. Everything else uses autograd.
    """
    usual = fast and loss is None and objective.flat and project is None
    if usual and whole and rates.adam is None and (native := Native.of(network, parts, rates, objective)):
        return native
    descent = Descent([p for part in parts for p in part.parameters()], **rates._asdict())
    return PlainKernel(models, parts, loss or (lambda x, y: objective.loss(network(x), y)), descent, project)
