"""Weighted sums of records in fixed point: integers modulo 2**64, which masks can hide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ...contract.method import Sums
from ...records import Packed, Record, RecordError, Scalar, pack, unpack
from .protocol import Vector

BITS: Mapping[Sums, int] = {"samples": 28, "clients": 32}
"""fractional bits, by how clients are weighted: rounding changes a mean by at most 2**-29 / the mean number of
samples, or by 2**-33"""
SUM_BITS = 62
"""bits available to a sum: 64 less the sign and one to spare"""
TYPES = {str(t).removeprefix("torch."): t for t in (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8,
)}  # fmt: skip
"""tensor types that can be summed"""


def weight_of(sums: Sums, n: int) -> int:
    return n if sums == "samples" else 1


def find_misfit(record: Record, sums: Sums, n: int, parts: int) -> str | None:
    """Why this record can't be one of `parts` terms of a sum; None if it can."""
    most = 2.0 ** (SUM_BITS - BITS[sums]) / parts
    for name, t in pack(record).tensors.items():
        if str(t.dtype).removeprefix("torch.") not in TYPES:
            return f"{name} of type {t.dtype}, which can't be summed under masks"
        if not bool(t.isfinite().all()):
            return f"values in {name} that are not finite"
        largest = float(t.double().abs().max()) if t.numel() else 0.0
        if largest * weight_of(sums, n) >= most:
            allowed = most / max(weight_of(sums, n), 1)
            return f"values in {name} up to {largest:g}, but under masks they must be below {allowed:g}"
    return None


def add_up(ups: Mapping[int, Record], sums: Sums, samples: Mapping[int, int]) -> Packed:
    """The weighted sum of these clients' messages as integers; the scalar `types` keeps their original types."""
    packed = {c: pack(up) for c, up in ups.items()}
    first = next(iter(packed.values()))
    total = {k: torch.zeros(t.shape, dtype=torch.int64) for k, t in first.tensors.items()}
    for c, (tensors, scalars) in packed.items():
        if _layout(tensors) != _layout(first.tensors) or scalars != first.scalars:
            raise RecordError(f"client {c} sent a message with another layout than the other clients of its site")
        for k, t in tensors.items():
            total[k] += (t.detach().cpu().double() * weight_of(sums, samples[c]) * 2.0 ** BITS[sums]).round().long()
    kinds = ",".join(str(t.dtype).removeprefix("torch.") for t in first.tensors.values())
    return Packed(total, {"types": kinds, "none": ",".join(first.scalars)})


def _layout(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    return {k: (t.dtype, t.shape) for k, t in tensors.items()}


def layout_of(total: Packed) -> tuple[Any, ...]:
    """The layout of a sum; only sums of the same layout can be added."""
    if set(total.scalars) != {"types", "none"} or any(t.dtype != torch.int64 for t in total.tensors.values()):
        raise RecordError("this is not a masked sum")
    return (*((k, tuple(t.shape)) for k, t in total.tensors.items()), total.scalars["types"], total.scalars["none"])


def flatten(total: Packed) -> Vector:
    """All tensors as one vector."""
    rows = [t.reshape(-1).numpy() for t in total.tensors.values()]
    return np.concatenate([np.empty(0, np.int64), *rows]).view(np.uint64)


def unflatten(row: Vector, like: Packed) -> Packed:
    """The inverse of `flatten`."""
    sizes = [t.numel() for t in like.tensors.values()]
    parts = torch.from_numpy(row.view(np.int64).copy()).split(sizes)
    return Packed({k: p.view(t.shape) for (k, t), p in zip(like.tensors.items(), parts, strict=True)}, like.scalars)


def mean_of(cls: type[Record], total: Packed, sums: Sums, weight: int) -> Record:
    """The mean message; integers, such as BatchNorm's counters, are rounded."""
    names = str(total.scalars["types"]).split(",") if total.tensors else []
    if len(names) != len(total.tensors) or not set(names) <= TYPES.keys():
        raise RecordError("this is not a masked sum: its types do not match its tensors")
    tensors: dict[str, torch.Tensor] = {}
    for (k, t), name in zip(total.tensors.items(), names, strict=True):
        mean = t.double() / 2.0 ** BITS[sums] / max(weight, 1)
        tensors[k] = (mean if TYPES[name].is_floating_point else mean.round()).to(TYPES[name])
    absent: dict[str, Scalar] = {k: False for k in str(total.scalars["none"]).split(",") if k}
    return unpack(cls, Packed(tensors, absent))
