"""Tensors and scalars as bytes: the safetensors format, with the scalars and the order of names in its metadata.

Bytes may come from anywhere. What they claim is checked against limits before memory is allocated, and anything wrong
with them is a `RecordError`.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from .memory import settle

Scalar = int | float | str | bool

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
"""the types that a message can hold, with safetensors' names for them"""

HEADER = 32 * 2**20
"""most bytes of a header"""
TENSORS = 200_000
"""most tensors: models of twenty tensors for ten thousand clients"""
DIMENSIONS = 8
"""most dimensions of a tensor"""
SIDE = 2**32
"""every dimension must be smaller"""


class RecordError(ValueError):
    """Bytes or tensors that are not the expected record."""


class Packed(NamedTuple):
    """A record as plain tensors and scalars, in a fixed order."""

    tensors: dict[str, Tensor]
    scalars: dict[str, Scalar]


def to_bytes(packed: Packed) -> bytes:
    """Eight bytes with the length of a JSON header, the header, then the tensors' own memory.

    Not written by the library, which would copy every tensor three times; it reads what we write.
    """
    note = json.dumps({"scalars": packed.scalars, "order": list(packed.tensors)})
    header: dict[str, Any] = {"__metadata__": {"headwise": note}}
    at = 0
    parts: list[Tensor] = []
    for name, t in packed.tensors.items():
        if t.dtype not in DTYPES:
            raise RecordError(f"{name!r} is of type {t.dtype}, which a message can't hold")
        size = t.numel() * t.element_size()
        header[name] = {"dtype": DTYPES[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + size]}
        parts.append(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8))
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *(part.numpy().data for part in parts)])


def from_bytes(data: bytes) -> Packed:
    """The inverse of `to_bytes`; raises `RecordError` for any other bytes."""
    try:
        note = _note(data)
        tensors = safetensors.torch.load(data)
        packed = Packed({k: settle(tensors[k]) for k in note["order"]}, dict(note["scalars"]))
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RecordError(f"these bytes are not a valid record: {error}") from error
    if len(packed.tensors) != len(tensors):
        raise RecordError("these bytes are not a valid record: they hold tensors that are not named")
    return packed


def _note(data: bytes) -> dict[str, Any]:
    """The scalars and the order of names; refuses what exceeds the limits before memory is allocated."""
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(HEADER, len(data) - 8):
        raise ValueError(f"their header claims {size} bytes, more than there are or may be")
    header = json.loads(data[8 : 8 + size])
    note = json.loads(header.pop("__metadata__")["headwise"])
    if len(header) > TENSORS or len(note["order"]) > TENSORS or len(note["scalars"]) > TENSORS:
        raise ValueError(f"more than {TENSORS} tensors or scalars")
    for name, entry in header.items():
        if len(entry["shape"]) > DIMENSIONS or not all(type(n) is int and 0 <= n < SIDE for n in entry["shape"]):
            raise ValueError(f"{name!r} has an impossible shape")
    return note
