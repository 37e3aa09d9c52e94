"""Settings are frozen dataclasses: their types and ranges are checked here, their help stands under each field.

    @dataclass(frozen=True)
    class FedProx:
        mu: Annotated[float, Range(0)] = 0.01
        "weight of the proximal term"

`build` makes one from plain values (TOML, JSON, the command line), `check` examines one made in Python, `dump` gives
plain values back. A mistake is one sentence that names the field, the value and what is allowed.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import types
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from ..errors import ConfigError, nearest

T = TypeVar("T")


@dataclass(frozen=True)
class Range:
    """The numbers a field allows: from `low` to `high`, both included unless `above` says that `low` is not."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False

    def __contains__(self, value: float) -> bool:
        return (self.low < value if self.above else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        low = f"{'above' if self.above else 'at least'} {_number(self.low)}"
        if self.high == math.inf:
            return low
        high = _number(self.high)
        return f"{low} and at most {high}" if self.above else f"from {_number(self.low)} to {high}"


Count = Annotated[int, Range(1, 10**9)]
Epochs = Annotated[int, Range(1, 10_000)]
"""bounded, because the order of samples in all epochs of a phase is drawn before it begins"""
EpochsOrNone = Annotated[int, Range(0, 10_000)]
Seeds = Annotated[int, Range(1, 10_000)]
"""how many of them; bounded, because all runs are listed before the first one begins"""
Natural = Annotated[int, Range(0, 10**9)]
Positive = Annotated[float, Range(0, 1e6, above=True)]
NonNegative = Annotated[float, Range(0, 1e6)]
Share = Annotated[float, Range(0, 1, above=True)]
Unit = Annotated[float, Range(0, 1)]


class Parsed(ABC):
    """A dataclass that reads itself from, and writes itself as, a plain value of its own form."""

    @classmethod
    @abstractmethod
    def parse(cls, value: Any, at: str) -> Self:
        """From a plain value, or one sentence about why not."""

    @abstractmethod
    def plain(self) -> Any:
        """The plain value that `parse` would make this from."""


def build(cls: type[T], values: Mapping[str, Any], at: str = "") -> T:
    """An instance of the dataclass `cls` from plain values; unknown keys, wrong types and bad ranges are errors."""
    check_names(cls, values, at)
    kinds = field_types(cls)
    given = {k: convert(v, kinds[k], _join(at, k)) for k, v in values.items()}
    for field in dataclasses.fields(cls):  # pyright: ignore[reportArgumentType]
        needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if needed and field.name not in given:
            raise ConfigError(f"{_join(at, field.name)} is missing: it has no default.")
    return cls(**given)


def check_names(cls: type[Any], values: Mapping[str, Any], at: str = "") -> None:
    """Raise if one of these names is not a setting of the dataclass."""
    kinds = field_types(cls)
    for key in values:
        if key not in kinds:
            if key in (gone := getattr(cls, "gone", {})):  # settings of earlier versions, and what they became
                now = _join(at, gone[key])
                raise ConfigError(f"{_join(at, key)} is now {now}, which is {type_words(kinds[gone[key]])}.")
            raise ConfigError(f"{_join(at, key)} is not a setting: {nearest(str(key), kinds)}")


def check(instance: object, at: str = "") -> None:
    """Raise if a field of this dataclass, made in Python, has a wrong type or is out of its range."""
    for name, kind in field_types(type(instance)).items():
        convert(getattr(instance, name), kind, _join(at, name))


def changed(now: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in a tree of plain values that are not as usual."""
    found: dict[str, Any] = {}
    for name, value in now.items():
        known: Any = usual.get(name)
        if name not in usual or value != known:
            found[name] = changed(value, known) if isinstance(value, Mapping) and isinstance(known, Mapping) else value
    return found


def dump(value: Any) -> Any:
    """The plain values (JSON, TOML) that `build` would make this from."""
    if isinstance(value, Parsed):
        return value.plain()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: dump(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return [dump(v) for v in value] if isinstance(value, tuple) else value  # pyright: ignore[reportUnknownVariableType]


@cache
def field_types(cls: type) -> dict[str, Any]:
    """Every setting of the dataclass with its full type, in the order of the fields."""
    hints = get_type_hints(cls, include_extras=True)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


@cache
def field_help(cls: type) -> dict[str, str]:
    """The literal string under each field, of the class and those it inherits from."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            found |= help_in(ast.parse(inspect.cleandoc("\n" + inspect.getsource(base))).body[0])
    return found


def help_in(node: ast.AST) -> dict[str, str]:
    """The strings that stand directly below annotated names in a class body."""
    assert isinstance(node, ast.ClassDef)
    found: dict[str, str] = {}
    for field, text in zip(node.body, node.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            literal = text.value
            if isinstance(literal, ast.Constant) and isinstance(literal.value, str):
                found[field.target.id] = " ".join(literal.value.split())
    return found


def convert(value: Any, kind: Any, at: str) -> Any:
    """The value as the type says, or one sentence about why not."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _within(convert(value, args[0], at), args[1:], at)
    if origin in (Union, types.UnionType):
        return _one_of(value, args, at)
    if origin is Literal:
        if not any(value == allowed and type(value) is type(allowed) for allowed in args):
            raise ConfigError(f"{at} is {value!r}: {nearest(str(value), map(str, args))}")
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{at} is {value!r}, but must be a list.")
        return tuple(convert(v, args[0], f"{at}[{i}]") for i, v in enumerate(value))
    if dataclasses.is_dataclass(kind):
        return _nested(value, kind, at)
    return _plain(value, kind, at)


def _nested(value: Any, kind: Any, at: str) -> Any:
    if isinstance(value, kind):
        if not isinstance(value, Parsed):
            check(value, at)
        return value
    if issubclass(kind, Parsed):
        return kind.parse(value, at)
    if not isinstance(value, Mapping):
        raise ConfigError(f"{at} is {value!r}, but must be a table with {', '.join(field_types(kind))}.")
    return build(kind, value, at)


def _one_of(value: Any, kinds: tuple[Any, ...], at: str) -> Any:
    if value is None or (value == "none" and types.NoneType in kinds):
        if types.NoneType in kinds:
            return None
        raise ConfigError(f"{at} is missing a value.")
    rest = [k for k in kinds if k is not types.NoneType]
    for kind in rest[:-1]:
        try:
            return convert(value, kind, at)
        except ConfigError:
            continue
    return convert(value, rest[-1], at)


_WORDS: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def _plain(value: Any, kind: Any, at: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < 1e300 else math.inf
    fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    if not fits or (kind is float and not math.isfinite(value)):
        raise ConfigError(f"{at} is {value!r}, but must be {_WORDS.get(kind, f'a {kind.__name__}')}.")
    return value


def _within(value: Any, limits: tuple[Any, ...], at: str) -> Any:
    for limit in limits:
        if isinstance(limit, Range) and value is not None and value not in limit:
            raise ConfigError(f"{at} is {value!r}, but must be {limit}.")
    return value


def _join(at: str, name: object) -> str:
    return f"{at}.{name}" if at else str(name)


def type_words(kind: Any) -> str:
    """A field's type in words, for help texts."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        limits = [str(a) for a in args[1:] if isinstance(a, Range)]
        return ", ".join([type_words(args[0]), *limits])
    if origin is Literal:
        return " | ".join(map(str, args))
    if origin in (Union, types.UnionType):
        return " or ".join("none" if a is types.NoneType else type_words(a) for a in args)
    if origin is tuple:
        return f"list of {type_words(args[0])}"
    return _WORDS.get(kind, getattr(kind, "__name__", str(kind)))


def _number(value: float) -> str:
    return f"{int(value):,}" if math.isfinite(value) and value == int(value) else f"{value:g}"
