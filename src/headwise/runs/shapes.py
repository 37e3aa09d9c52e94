"""What the files of a run hold: all that is read from them is checked against these shapes first.

A shape is a type, None, a tuple of shapes of which one must fit, ``[shape]`` for a list, ``{str: shape}`` for a table
with any names, or ``{"name": shape, "other?": shape}``, where the second may be missing and more names may be there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints, is_typeddict

from ..errors import RunError
from ..log.schema import ClientLine, Round

Shape = Any
MOST = 2**63
"""no whole number in a run's files is as large; the loss of a model that diverges may be"""

_CHOICE = {"name": str}
MANIFEST: Shape = {
    "experiment": {"method": _CHOICE, "data": _CHOICE, "partition": _CHOICE, "clients": int, "seed": int},
    "partition": {"hash": str, "floor": {"weighted": (float, None)}},
    "data_dir": str,
    "partition_digest?": str,
    "hardware?": {"cpu?": str, "kernels?": str},
    "versions?": {str: str},
}
PARTITION: Shape = {"train": [[int]], "test": [[int]]}
RESULT: Shape = {"ended": str, "lines?": {str: {"size": int, "digest": str}}}


def shape_of(kind: Any) -> Shape:
    """The shape of what has this type: a typed dictionary, a list, a table or a number."""
    inner = get_args(kind)
    if is_typeddict(kind):
        hints = get_type_hints(kind, include_extras=True)
        return {k if k in kind.__required_keys__ else f"{k}?": shape_of(hint) for k, hint in hints.items()}
    if get_origin(kind) is Annotated:
        return inner[1]
    if get_origin(kind) in (Union, UnionType):
        return tuple(shape_of(each) for each in inner)
    if get_origin(kind) is list:
        return [shape_of(inner[0])]
    if get_origin(kind) is Mapping:
        return {inner[0]: shape_of(inner[1])}
    return None if kind is NoneType else kind


ROUND, CLIENT = shape_of(Round), shape_of(ClientLine)
DIAGNOSTIC: Shape = {"round": int, "quantities": {str: {"axes": [str], "ids": [int], "values": list}}}
SITE: Shape = {
    "round": int,
    "site": object,
    "task": str,
    "clients": [int],
    **dict.fromkeys(("bytes_up", "bytes_down", "seconds"), float),
}
CHECKPOINT: Shape = {
    "round": int,
    "best": (float, None),
    "waited": int,
    "sizes": {"rounds.jsonl": int, "clients.jsonl": int},
    "digests?": {str: str},
    "scalars": dict,
}


def check(value: Any, shape: Shape, path: Path, where: str = "") -> None:
    """One sentence about the file if what was read from it does not have this shape."""
    if wrong := misfit(value, shape):
        raise RunError(f"{path} is damaged{where}: {wrong}.")


def misfit(value: Any, shape: Shape, at: str = "") -> str:
    """What is wrong with the value, in a few words; nothing if it has this shape."""
    if isinstance(shape, tuple):
        found = [misfit(value, each, at) for each in shape]
        return "" if "" in found else found[0]
    if isinstance(shape, list) and isinstance(value, list):
        return next((w for k, v in enumerate(value) if (w := misfit(v, shape[0], f"{at}[{k}]"))), "")
    if isinstance(shape, dict) and isinstance(value, dict):
        return next(filter(None, (_entry(value, name, inner, at) for name, inner in shape.items())), "")
    if value is None if shape is None else isinstance(shape, type) and _is_a(value, shape):
        return ""
    said = repr(value)
    return f"{f'its {at}' if at else 'it'} is {said if len(said) < 60 else f'{said[:60]}...'}"


def _entry(value: dict[str, Any], name: Any, inner: Shape, at: str) -> str:
    """What is wrong with one entry of a table, or with all of them where the shape has no names."""
    if name is str:
        return next((w for k, v in value.items() if (w := misfit(v, inner, _join(at, k)))), "")
    key = name.removesuffix("?")
    if key in value:
        return misfit(value[key], inner, _join(at, key))
    return "" if name != key else f"its {_join(at, key)} is missing"


def _join(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _is_a(value: Any, kind: type) -> bool:
    if kind in (int, float) and type(value) is int:
        return abs(value) < MOST
    if kind is float:
        return type(value) is float and math.isfinite(value)
    return type(value) is int if kind is int else isinstance(value, kind)
