"""Records: the only things that travel between the halves of a method or outlive a round.

A record is a frozen dataclass whose fields are `Params`, `Tensor`, `dict[int, Params]` (by client) or a scalar, each
possibly ``None``. `pack` flattens one into plain tensors and scalars, `encode` turns it into bytes (safetensors). The
reader always names the type to decode: the sender decides nothing, and nothing is ever unpickled or imported.

Bytes may come from anywhere. What they claim is checked against limits before memory is allocated, and anything wrong
with them is a `RecordError`.
"""

from __future__ import annotations

import dataclasses
import json
import re
import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import (
    Any,
    ClassVar,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from .memory import settle
from .params import Params

R = TypeVar("R", bound="Record")
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
_WEIGHTS = {bool: 1, int: 4, float: 4, types.NoneType: 0}


class RecordError(ValueError):
    """Bytes or tensors that are not the expected record."""


class Packed(NamedTuple):
    """A record as plain tensors and scalars, in a fixed order."""

    tensors: dict[str, Tensor]
    scalars: dict[str, Scalar]


@dataclass_transform(frozen_default=True)
class Record:
    """What travels or is kept: a subclass has typed fields, and becomes a frozen dataclass by itself.

    A field is `Params`, a `Tensor`, ``dict[int, Params]`` by client, or a number, text or boolean; or None, if its type
    says so.

    >>> class Mixed(Record):
    ...     head: Params
    ...     share: float
    >>> Mixed(Params(), 0.5).share
    0.5
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True, eq=False)(cls)


class Nothing(Record):
    """An empty record: a message without content, or the state of a client that keeps nothing.

    >>> nbytes(Nothing())
    0
    """


def pack(record: Record) -> Packed:
    """Flatten a record; every transport and every checkpoint uses this."""
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, Scalar] = {}
    for field in dataclasses.fields(record):
        name = field.name
        value = getattr(record, name)
        if value is None:
            scalars[f"{name}?"] = False
        elif isinstance(value, Params):
            tensors |= {f"{name}/{k}": t.detach() for k, t in value.items()}
        elif isinstance(value, Tensor):
            tensors[name] = value.detach()
        elif isinstance(value, Mapping):
            many = cast(Mapping[int, Params], value)
            scalars[name] = ",".join(map(str, many))
            tensors |= {f"{name}/{c}/{k}": t.detach() for c, p in many.items() for k, t in p.items()}
        else:
            scalars[name] = value
    return Packed(tensors, scalars)


def unpack(cls: type[R], packed: Packed) -> R:
    """The record of this type; raises `RecordError` for a missing, superfluous or mistyped field."""
    tensors = dict(packed.tensors)
    scalars = dict(packed.scalars)
    values = {name: _take(name, kind, tensors, scalars) for name, kind in fields_of(cls).items()}
    if rest := [*tensors, *scalars]:
        raise RecordError(f"{cls.__name__} has no field for {rest[0]!r}")
    return cls(**values)


def encode(record: Record) -> bytes:
    return to_bytes(pack(record))


def decode(cls: type[R], data: bytes, limit: int | None = None) -> R:
    """The inverse of `encode`, for at most `limit` bytes."""
    if limit is not None and len(data) > limit:
        raise RecordError(f"this {cls.__name__} has {len(data)} bytes, but at most {limit} are allowed")
    return unpack(cls, from_bytes(data))


def nbytes(record: Record) -> int:
    """The record's size on the wire: tensors by their type, numbers 4 bytes, booleans 1, strings as UTF-8."""
    return sum(nbytes_by_field(record).values())


def nbytes_by_field(record: Record) -> dict[str, int]:
    return {name: _weight(getattr(record, name)) for name in fields_of(type(record))}


def _weight(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, Mapping):
        return sum(map(_weight, cast(Mapping[Any, Any], value).values()))
    return len(value.encode()) if isinstance(value, str) else _WEIGHTS[type(value)]


def same(a: Record, b: Record) -> bool:
    """Bit-for-bit equality, names and order included; NaN equals NaN."""
    (ta, sa), (tb, sb) = pack(a), pack(b)
    if type(a) is not type(b) or list(ta) != list(tb) or repr(sa) != repr(sb):
        return False
    return all(_same_bits(ta[k], tb[k]) for k in ta)


def map_tensors(record: R, f: Callable[[Tensor], Tensor]) -> R:
    """Apply `f` to every tensor of a record."""
    values = {name: _map(name, kind, getattr(record, name), f) for name, kind in fields_of(type(record)).items()}
    return type(record)(**values)


def _map(name: str, kind: Any, value: Any, f: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Params):
        return value.map(f)
    if isinstance(value, Tensor):
        return f(value)
    if isinstance(value, Mapping):
        return {c: params.map(f) for c, params in cast(Mapping[int, Params], value).items()}
    if type(value) not in (get_args(kind) or (kind,)):
        raise _make_type_error(name, kind, value)
    return value


@cache
def fields_of(cls: type[Record]) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def _take(name: str, kind: Any, tensors: dict[str, Tensor], scalars: dict[str, Scalar]) -> Any:
    """Remove and return what belongs to one field."""
    if get_origin(kind) in (Union, types.UnionType):
        if scalars.pop(f"{name}?", True) is False:
            return None
        kind = next(k for k in get_args(kind) if k is not types.NoneType)
    if kind is Params:
        prefix = f"{name}/"
        return Params({k.removeprefix(prefix): tensors.pop(k) for k in list(tensors) if k.startswith(prefix)})
    if get_origin(kind) is dict:
        return _take_many(f"{name}/", _ids(name, _pop(scalars, name)), tensors)
    if kind is Tensor:
        return _pop(tensors, name)
    value = _pop(scalars, name)
    if type(value) is not kind:
        raise _make_type_error(name, kind, value)
    return value


def _make_type_error(name: str, kind: Any, value: Any) -> RecordError:
    return RecordError(f"field {name!r} is {value!r}, but must be {getattr(kind, '__name__', kind)}")


def _ids(name: str, value: Scalar) -> list[int]:
    """The keys of a field by client, as `pack` wrote them."""
    number = r"(0|-?[1-9][0-9]{0,17})"
    if not isinstance(value, str) or not re.fullmatch(f"({number}(,{number})*)?", value):
        raise RecordError(f"field {name!r} is {value!r}, but must be a comma-separated list of integers")
    ids = [int(c) for c in value.split(",") if c]
    if len(set(ids)) < len(ids) or len(ids) > TENSORS:
        raise RecordError(f"field {name!r} names a client twice, or more than {TENSORS}")
    return ids


def _take_many(prefix: str, ids: list[int], tensors: dict[str, Tensor]) -> dict[int, Params]:
    """The parameters of each client, in one pass over the tensors: there can be as many clients as tensors."""
    by_client: dict[str, dict[str, Tensor]] = {str(c): {} for c in ids}
    for key in [k for k in tensors if k.startswith(prefix)]:
        client, sign, name = key[len(prefix) :].partition("/")
        if sign and client in by_client:
            by_client[client][name] = tensors.pop(key)
    return {c: Params(by_client[str(c)]) for c in ids}


def _pop(values: dict[str, Any], name: str) -> Any:
    if name not in values:
        raise RecordError(f"field {name!r} is missing")
    return values.pop(name)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool(torch.equal(a.contiguous().reshape(-1).view(torch.uint8), b.contiguous().reshape(-1).view(torch.uint8)))


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
