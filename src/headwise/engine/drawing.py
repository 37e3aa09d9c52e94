"""Initial weights that are the same on every CPU.

torch scales its uniform draws with or without FMA, and computes normal ones with the logarithm of its instruction set.
While `draw_alike` is active, both are computed in float64 from torch's raw uniform numbers (which are the same
everywhere), one correctly rounded operation at a time. Uniform draws equal those of torch's vector code to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


@contextmanager
def draw_alike(seed: int) -> Iterator[None]:
    """Seeds torch's CPU generator and restores it afterwards."""
    with torch.random.fork_rng(devices=[]), _SameEverywhere():
        torch.manual_seed(seed)
        yield


class _SameEverywhere(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would import torch._dynamo, which takes longer than many a run

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _OURS.get(func, func)(*args, **(kwargs or {}))


def _uniform(self: Tensor, low: float = 0, high: float = 1, *, generator: torch.Generator | None = None) -> Tensor:
    least, most = torch.tensor([low, high], dtype=self.dtype)
    u = torch.rand(self.shape, dtype=self.dtype, generator=generator)
    # In float32 the product has 48 bits and the sum 50: float64 holds both exactly, so the only rounding is the last.
    return self.copy_(u.double() * (most - least).double() + least.double())


def _normal(self: Tensor, mean: float = 0, std: float = 1, *, generator: torch.Generator | None = None) -> Tensor:
    """Normal draws, by the Box-Muller transform."""
    u, v = torch.rand((2, *self.shape), dtype=torch.float64, generator=generator)
    return self.copy_((-2 * _log(1 - u)).sqrt() * -_cos(2 * math.pi * (v - 0.5)) * std + mean)


def _log(x: Tensor) -> Tensor:
    """By the series of artanh, for 0 < x <= 1."""
    mantissa, exponent = torch.frexp(x)
    s = (mantissa - 1) / (mantissa + 1)
    total = torch.zeros_like(s)
    for k in range(35, 0, -2):
        total = total * s * s + 1 / k
    return exponent.double() * math.log(2) + 2 * s * total


def _cos(x: Tensor) -> Tensor:
    """By Taylor's series, for |x| <= pi."""
    total = torch.ones_like(x)
    for k in range(32, 0, -2):
        total = 1 - x * x / (k * (k - 1)) * total
    return total


_OURS = {torch.ops.aten.uniform_.default: _uniform, torch.ops.aten.normal_.default: _normal}
