"""What the files of a run hold: all that is read from them is checked against these shapes first.

A shape is a type, None, a tuple of shapes of which one must fit, ``[shape]`` for a list, ``{str: shape}`` for a table
with any names, or ``{"name": shape, "other?": shape}``, where the second may be missing and more names may be there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints, is_typeddict

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
    "hardware?": {"cpu?": str, "kernels?": str, "chains?": str},
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


class Misfit(NamedTuple):
    """What is wrong, and where."""

    at: str
    said: str

    def below(self, name: str) -> Misfit:
        """The same, seen from further outside."""
        joint = "" if not self.at or self.at.startswith("[") else "."
        return Misfit(f"{name}{joint}{self.at}", self.said)


Judge = Callable[[Any], Misfit | None]
_judges: dict[int, tuple[Shape, Judge]] = {}
"""those of shapes that were asked for, which are kept so that no other one gets their ids"""


def check(value: Any, shape: Shape, path: Path, where: str = "") -> None:
    """One sentence about the file if what was read from it does not have this shape."""
    if wrong := misfit(value, shape):
        raise RunError(f"{path} is damaged{where}: {f'its {wrong.at}' if wrong.at else 'it'} is {wrong.said}.")


def misfit(value: Any, shape: Shape) -> Misfit | None:
    """What is wrong with the value; nothing if it has this shape."""
    if id(shape) not in _judges:
        _judges[id(shape)] = shape, judge_of(shape)
    return _judges[id(shape)][1](value)


def judge_of(shape: Shape) -> Judge:
    """What says of a value whether it has this shape; made once, since runs have a great many lines."""
    if isinstance(shape, tuple):
        return _one_of([judge_of(each) for each in shape])
    if isinstance(shape, list):
        return _all(list, judge_of(shape[0]), iter, lambda value: (f"[{k}]" for k in range(len(value))))
    if isinstance(shape, dict) and str in shape:
        return _all(dict, judge_of(shape[str]), dict.values, dict.keys)
    if isinstance(shape, dict):
        return _named({str(name): judge_of(inner) for name, inner in shape.items()})
    return _leaf(_KINDS.get(shape, lambda value: value is None if shape is None else isinstance(value, shape)))


_KINDS: dict[Any, Callable[[Any], bool]] = {
    int: lambda v: type(v) is int and -MOST < v < MOST,
    float: lambda v: math.isfinite(v) if type(v) is float else type(v) is int and -MOST < v < MOST,
}


def _leaf(fits: Callable[[Any], bool]) -> Judge:
    return lambda value: None if fits(value) else _wrong(value)


def _one_of(judges: list[Judge]) -> Judge:
    def judge(value: Any) -> Misfit | None:
        return judges[0](value) if all(each(value) for each in judges) else None

    return judge


def _all(
    kind: type, inner: Judge, values: Callable[[Any], Iterable[Any]], names: Callable[[Any], Iterable[str]]
) -> Judge:
    """Of a list, or a table with any names: all that is in it."""

    def judge(value: Any) -> Misfit | None:
        if not isinstance(value, kind):
            return _wrong(value)
        if not any(map(inner, values(value))):
            return None
        return next(
            wrong.below(name) for name, v in zip(names(value), values(value), strict=True) if (wrong := inner(v))
        )

    return judge


def _named(judges: dict[str, Judge]) -> Judge:
    entries = [(name.removesuffix("?"), name.endswith("?"), judge) for name, judge in judges.items()]

    def judge(value: Any) -> Misfit | None:
        if not isinstance(value, dict):
            return _wrong(value)
        for name, optional, inner in entries:
            if name in value:
                if wrong := inner(value[name]):
                    return wrong.below(name)
            elif not optional:
                return Misfit(name, "missing")
        return None

    return judge


def _wrong(value: Any) -> Misfit:
    said = repr(value)
    return Misfit("", said if len(said) < 60 else f"{said[:60]}...")
