"""Simulates the worst CPU: passing on this machine's CPU proves nothing about the next one.

Libraries choose kernels by where operands begin in memory, how they are laid out and how many rows they have, and each
kernel rounds in its own way. Which of these matter differs from CPU to CPU; here all of them do.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..engine.kernels.native.library import LIMIT
from ..memory import LINE, address

_NAMES = """
    mm addmm addmm_ mv addmv dot vdot addr bmm baddbmm baddbmm_ linear convolution convolution_backward
    sum mean var std var_mean norm linalg_vector_norm logsumexp cumsum prod
    _softmax _log_softmax _softmax_backward_data _log_softmax_backward_data
    native_batch_norm _native_batch_norm_legit native_batch_norm_backward native_layer_norm native_group_norm
    _embedding_bag _embedding_bag_forward_only avg_pool2d _adaptive_avg_pool2d
    exp exp_ log log_ tanh sigmoid
"""
ROUNDED = frozenset(_NAMES.split())
"""operators that round in an order the library chooses"""


class Nervous(TorchDispatchMode):
    """While entered, the last bits of products, convolutions and reductions depend on the operands' memory.

    Three-dimensional tensors are stacks, as for `bmm`: each slice depends on its own place.
    """

    def __init__(self) -> None:
        super().__init__()
        self.touched = 0
        """results that differ from torch's own"""

    def __enter__(self) -> Nervous:
        """Switch off the native kernels, which this mode can't see; their bits do not depend on luck."""
        self._limit = os.environ.get(LIMIT)
        os.environ[LIMIT] = "off"
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if self._limit is None:
            os.environ.pop(LIMIT, None)
        else:
            os.environ[LIMIT] = self._limit

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func._schema.name.partition("::")[2]
        if name not in ROUNDED:
            return func(*args, **(kwargs or {}))
        operands = [t for t in _tensors(args) if t.is_floating_point()]
        stack = next((len(t) for t in operands if t.dim() == 3), 0)
        if stack and all(t.dim() == 3 and len(t) == stack for t in operands):
            places = [tuple(_place(t, k) for t in operands) for k in range(stack)]
        else:
            stack = 0
            places = [tuple(_place(t) for t in operands)]
        result = func(*args, **(kwargs or {}))
        steps = [zlib.crc32(repr((name, place)).encode()) % 4 for place in places]
        for out in _tensors([result]):
            if out.is_floating_point() and (not stack or (out.dim() and len(out) == stack)):
                self._nudge(out, steps)
        return result

    def _nudge(self, out: Tensor, steps: Sequence[int]) -> None:
        """Round up by this many units in the last place."""
        if any(steps):
            self.touched += 1
            factors = 1 + torch.tensor(steps, dtype=out.dtype) * torch.finfo(out.dtype).eps
            out.mul_(factors.view(-1, *[1] * (out.dim() - 1)) if out.dim() else factors[0])


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, (list, tuple)):
        for value in values:  # pyright: ignore[reportUnknownVariableType]
            yield from _tensors(value)


def _place(t: Tensor, k: int | None = None) -> tuple[int, ...]:
    """Where in a cache line the tensor, or its k-th slice, begins; its rows; its strides."""
    shape = t.shape if k is None else t.shape[1:]
    at = address(t) + (k or 0) * t.stride(0) * t.element_size() if t.dim() else address(t)
    strides = [s for s, size in zip(t.stride()[-len(shape) :], shape, strict=True) if size > 1] if shape else []
    return at % LINE, shape[0] if shape else 0, *strides
