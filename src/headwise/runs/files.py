"""The files of a run's folder: shapes, against which everything read from them is validated, and line files.

A shape is a type, ``(shape, None)`` for an optional value, ``[shape]`` for a list, ``{str: shape}`` for an object with
any keys, or ``{"name": shape, "other?": shape}``, where ``other`` may be missing and further keys are ignored.

Line files hold one JSON object per line, are only ever appended to, and are verified by size and digest.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Required, get_args, get_origin, get_type_hints, is_typeddict

from .. import __version__
from ..disk.files import digest, from_json
from ..errors import RunError
from ..log.schema import ClientLine, Round

Shape = Any
MOST = 2**63
"""a run's files hold only smaller integers; a diverging loss may be larger"""


class Misfit(NamedTuple):
    at: str
    """where: names and indices from the outermost value, empty for the value itself"""
    actual: str
    """the actual value, in words"""

    def nest_in(self, name: str) -> Misfit:
        """The same, as seen from the value that holds this one as `name`."""
        joint = "" if not self.at or self.at.startswith("[") else "."
        return Misfit(f"{name}{joint}{self.at}", self.actual)


Judge = Callable[[Any], Misfit | None]
"""what is wrong with a value; None if it has the right shape"""


def check(value: Any, judge: Judge, path: Path, where: str = "") -> None:
    """Raise `RunError` if a value read from this file does not have the right shape."""
    if wrong := judge(value):
        raise RunError(f"{path} is damaged{where}: {f'its {wrong.at}' if wrong.at else 'it'} is {wrong.actual}.")


def check_version(content: Any, expected: int, path: Path) -> None:
    """Raise `RunError` if what was read from this file is in another format than `expected`, that of its folder."""
    version = content.get("format") if isinstance(content, dict) else None
    if type(version) is not int:
        raise RunError(f"{path} is damaged: its format is {version!r}.")
    if version != expected:
        raise RunError(f"{path.parent} is in format {version}, but Headwise {__version__} reads format {expected}.")


def judge_of(shape: Shape) -> Judge:
    """Compile a shape into a function: runs have a great many lines to check."""
    origin = get_origin(shape)
    of = get_args(shape)
    if origin in (Annotated, Required):
        return judge_of(of[-1])
    if is_typeddict(shape):
        hints = get_type_hints(shape, include_extras=True)
        return judge_of({k if k in shape.__required_keys__ else f"{k}?": hint for k, hint in hints.items()})
    if isinstance(shape, tuple):
        inner = judge_of(shape[0])
        return lambda value: None if value is None else inner(value)
    if origin is list or isinstance(shape, list):
        inner = judge_of((of or shape)[0])
        return _all(list, inner, iter, lambda value: (f"[{k}]" for k in range(len(value))))
    if origin is Mapping:
        return judge_of({str: of[1]})
    if isinstance(shape, dict):
        named = _judge_entries({name: judge_of(inner) for name, inner in shape.items() if name is not str})
        others = _all(dict, judge_of(shape.get(str, object)), dict.values, dict.keys)
        return (lambda value: others(value) or named(value)) if str in shape else named
    fits = _NUMBERS.get(shape, lambda value: isinstance(value, shape))
    return lambda value: None if fits(value) else _make_misfit(value)


_NUMBERS: dict[Any, Callable[[Any], bool]] = {
    int: lambda v: type(v) is int and -MOST < v < MOST,
    float: lambda v: math.isfinite(v) if type(v) is float else type(v) is int and -MOST < v < MOST,
}


def _all(
    kind: type, inner: Judge, values: Callable[[Any], Iterable[Any]], names: Callable[[Any], Iterable[str]]
) -> Judge:
    """Checks every element of a list, or of an object with any keys."""

    def judge(value: Any) -> Misfit | None:
        if not isinstance(value, kind):
            return _make_misfit(value)
        if not any(map(inner, values(value))):
            return None
        return next(
            wrong.nest_in(name) for name, v in zip(names(value), values(value), strict=True) if (wrong := inner(v))
        )

    return judge


def _judge_entries(judges: dict[str, Judge]) -> Judge:
    entries = [(name.removesuffix("?"), name.endswith("?"), judge) for name, judge in judges.items()]

    def judge(value: Any) -> Misfit | None:
        if not isinstance(value, dict):
            return _make_misfit(value)
        for name, optional, inner in entries:
            if name in value:
                if wrong := inner(value[name]):
                    return wrong.nest_in(name)
            elif not optional:
                return Misfit(name, "missing")
        return None

    return judge


def _make_misfit(value: Any) -> Misfit:
    text = repr(value)
    return Misfit("", text if len(text) < 60 else f"{text[:60]}...")


_CHOICE = {"name": str}
MANIFEST = judge_of({
    "experiment": {
        **{"method": _CHOICE, "data": _CHOICE, "partition": _CHOICE, "clients": int, "seed": int},
        **{"task": (str, None), "evaluate": {"metric": (str, None), "metrics": [str]}, "rounds": int},
        **{"engine": {"kind": str}, "origin": {"rounds": int}},
    },
    "partition": {"hash": str, "floor": {"weighted": (float, None)}},
    "data_dir": str,
    "partition_digest?": str,
    "code?": [{"round": int, "numerics": int, "packages": {str: str}, "files": {str: str}}],
    "hardware": {"cpu": str, "kernels": str},
    "versions": {"torch": str},
})  # fmt: skip
_FLOOR = {"over": (float, None), "clients": [(float, None)]}
PARTITION = judge_of({
    **{"train": [[int]], "val": [[int]], "test": [[int]]},
    **{"classes?": [str], "names?": [str], "floors?": {str: _FLOOR}},
})  # fmt: skip
RESULT = judge_of({"ended": str, "lines?": {str: {"size": int, "digest": str}}})
JOINED = judge_of({
    "clients": [int],
    "rows": [{"model": str, "epochs": int, "passes": float, "accuracy?": float, "each": list}],
})  # fmt: skip
CHECKPOINT = judge_of({
    "round": int,
    "best": (float, None),
    "waited": int,
    "best_round": (int, None),
    "sizes": {"rounds.jsonl": int, "clients.jsonl": int, str: int},
    "digests": {str: str},
    "scalars": dict,
})  # fmt: skip
LINES = {
    "rounds.jsonl": judge_of(Round),
    "clients.jsonl": judge_of(ClientLine),
    "diagnostics.jsonl": judge_of({"round": int, "quantities": {str: {"axes": [str], "ids": [int], "values": list}}}),
    "sites.jsonl": judge_of({
        "round": int,
        "site": object,
        "task": str,
        "clients": [int],
        "bytes_up": float,
        "bytes_down": float,
        "seconds": float,
    }),
}  # fmt: skip
"""by the name of the file"""


class Extent(NamedTuple):
    """The size of a line file at some moment, and the digest of its content then."""

    size: int
    digest: str

    def check(self, path: Path, data: bytes, when: str) -> None:
        """Raise `RunError` unless `data` starts with what the file held `when`."""
        if not 0 <= self.size <= len(data):
            raise RunError(f"{path} is damaged: it has {len(data)} bytes, but had {self.size} when {when} ended.")
        if digest(data[: self.size]) != self.digest:
            raise RunError(f"{path} is damaged: its first {self.size} bytes changed after {when} ended.")


class Growing:
    """The extent of a file that only grows, computed without reading it from the start each time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size = 0
        self._digest = hashlib.sha256()

    def extent(self) -> Extent | None:
        """None if there is no such file."""
        if not self.path.exists():
            return None
        with self.path.open("rb") as file:
            file.seek(self._size)
            new = file.read()
        self._size += len(new)
        self._digest.update(new)
        return Extent(self._size, self._digest.hexdigest())


def parse(path: Path, data: bytes, *, backwards: bool = False) -> Iterator[dict[str, Any]]:
    """Parse the complete lines of a file with this content: a killed run may leave a torn last line."""
    lines = data.split(b"\n")[:-1]
    for number in range(len(lines), 0, -1) if backwards else range(1, len(lines) + 1):
        where = f" at line {number}"
        row = from_json(lines[number - 1], path, where)
        check(row, LINES[path.name], path, where)
        yield row
