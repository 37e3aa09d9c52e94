"""Samples with weights: targets that carry them, and the loss in which they count.

Only the bench's loss multiplies by weights. Anything else that a method computes from targets would silently ignore
them, so a method that calls one of torch's losses on such targets is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import ConfigError
from .base import Dense, Objective

if TYPE_CHECKING:
    from collections.abc import Sequence

LOSSES = frozenset(
    getattr(functional, name)
    for name in (
        "cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "mse_loss", "l1_loss",
        "smooth_l1_loss", "huber_loss", "soft_margin_loss", "multi_margin_loss", "multilabel_soft_margin_loss",
    )
)  # fmt: skip
SAME_ROWS = frozenset({Tensor.clone, Tensor.contiguous, Tensor.detach, Tensor.to, Tensor.long, Tensor.float})
OWN_LOSS = (
    "the data have sample weights, but this method has a loss of its own, which would ignore them: choose another "
    "method, or leave the weights out"
)


class WeightedTargets(Tensor):
    """Targets with a weight for each sample, which rows keep; results of anything else are plain tensors."""

    sample_weight: Tensor

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func in LOSSES:
            raise ConfigError(f"{OWN_LOSS}.")
        result = func(*map(_to_plain, args), **{k: _to_plain(v) for k, v in (kwargs or {}).items()})
        first = args[0] if args else None
        if func is torch.cat and len(args) == 1 and all(isinstance(y, WeightedTargets) for y in args[0]):
            return weigh(result, torch.cat([y.sample_weight for y in args[0]]))
        if not isinstance(first, WeightedTargets):
            return result
        if func in SAME_ROWS:
            return weigh(result, first.sample_weight.to(result.device))
        if func is Tensor.__getitem__:
            rows = args[1][0] if isinstance(args[1], tuple) else args[1]
            return weigh(result, first.sample_weight[_to_plain(rows)])
        return result


def weigh(y: Tensor, weights: Tensor) -> WeightedTargets:
    """These targets, with a weight for each."""
    weighted = _to_plain(y).as_subclass(WeightedTargets)
    weighted.sample_weight = weights
    return weighted


def _to_plain(value: Any) -> Any:
    if isinstance(value, WeightedTargets):
        with torch._C.DisableTorchFunctionSubclass():
            return value.as_subclass(Tensor)
    if isinstance(value, tuple | list):
        return type(value)(map(_to_plain, value))
    return {k: _to_plain(v) for k, v in value.items()} if isinstance(value, Mapping) else value


class WeightedObjective(Objective):
    """Another loss, in which each sample counts by the weight that its target carries."""

    def __init__(self, base: Objective) -> None:
        self.base = base
        self.flat = base.flat

    def loss(self, scores: Tensor, y: Tensor) -> Tensor:
        if not isinstance(y, WeightedTargets):
            raise ConfigError(f"{OWN_LOSS}.")
        return (self.base.losses(scores, _to_plain(y)) * y.sample_weight).mean()

    def losses(self, scores: Tensor, y: Tensor) -> Tensor:
        return self.base.losses(scores, _to_plain(y))

    def divergence(self, p: Tensor, q: Tensor) -> Tensor:
        return self.base.divergence(p, q)

    def dense(self, y: Tensor) -> Dense:
        assert isinstance(y, WeightedTargets)
        dense = self.base.dense(_to_plain(y))
        return dense._replace(weights=dense.weights * y.sample_weight.unsqueeze(1))

    def counts(self, y: Tensor) -> Tensor:
        return self.base.counts(_to_plain(y))

    def guess(self, y: Tensor) -> Tensor:
        return self.base.guess(_to_plain(y))

    def in_target_units(self, scores: Tensor) -> Tensor:
        return self.base.in_target_units(scores)

    def probabilities(self, scores: Tensor) -> Tensor:
        return self.base.probabilities(scores)
