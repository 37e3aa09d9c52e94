"""Settings are frozen dataclasses. Types and ranges are checked here; the string under each field is its help text.

    @dataclass(frozen=True)
    class FedProx:
        mu: Annotated[float, Range(0)] = 0.01
        "weight of the proximal term"

`build` makes one from plain values (TOML, JSON, the command line), `check` validates one made in Python, and `dump`
returns plain values. Every error is one sentence that names the field, the value and what is allowed.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import tomllib
import types
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from ..errors import ConfigError, nearest

T = TypeVar("T")


@dataclass(frozen=True)
class Range:
    """The numbers that a field allows: `low` to `high`, inclusive unless `above` excludes `low`."""

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
"""a whole number of at least 1"""
Epochs = Annotated[int, Range(1, 10_000)]
"""bounded, because a phase draws the sample order of all its epochs before it starts"""
EpochsOrNone = Annotated[int, Range(0, 10_000)]
Seeds = Annotated[int, Range(1, 10_000)]
"""a number of seeds; bounded, because all runs are listed before the first one starts"""
Natural = Annotated[int, Range(0, 10**9)]
"""a whole number of at least 0"""
Positive = Annotated[float, Range(0, 1e6, above=True)]
"""a number above 0, such as a learning rate"""
NonNegative = Annotated[float, Range(0, 1e6)]
"""a number of at least 0, such as the weight of a loss"""
Share = Annotated[float, Range(0, 1, above=True)]
Unit = Annotated[float, Range(0, 1)]
"""a number from 0 to 1, such as a mixing coefficient"""


class Parsed(ABC):
    """A dataclass with a plain form of its own, such as ``"drop=0.3"``, instead of a table."""

    @classmethod
    @abstractmethod
    def parse(cls, value: Any, at: str) -> Self:
        """From a plain value; raises ConfigError, naming `at`, if it does not fit."""

    @abstractmethod
    def to_plain(self) -> Any:
        """The inverse of `parse`."""


class Checked:
    """A class whose fields are options: values given in Python are checked like those on the command line."""

    kind: ClassVar[str] = ""
    """what error messages call it"""

    def __post_init__(self) -> None:
        for name, kind in field_types(type(self)).items() if dataclasses.is_dataclass(self) else ():
            object.__setattr__(self, name, convert(getattr(self, name), kind, _join(self.kind, name)))


def build(cls: type[T], values: Mapping[str, Any], at: str = "") -> T:
    """An instance of the dataclass `cls`; unknown keys, wrong types and values out of range raise ConfigError."""
    check_names(cls, values, at)
    kinds = field_types(cls)
    given = {k: convert(v, kinds[k], _join(at, k)) for k, v in values.items()}
    for field in dataclasses.fields(cls):  # pyright: ignore[reportArgumentType]
        needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if needed and field.name not in given:
            raise ConfigError(f"{_join(at, field.name)} is missing: it has no default.")
    return cls(**given)


def check_names(cls: type[Any], values: Mapping[str, Any], at: str = "") -> None:
    """Raise ConfigError if a name is not a setting of the dataclass."""
    kinds = field_types(cls)
    for key in values:
        if key not in kinds:
            raise ConfigError(f"{_join(at, key)} is not a setting: {nearest(str(key), kinds)}")


def check(instance: object, at: str = "") -> None:
    """Raise ConfigError if a field of this dataclass has the wrong type or is out of range."""
    for name, kind in field_types(type(instance)).items():
        convert(getattr(instance, name), kind, _join(at, name))


def difference(now: Mapping[str, Any], default: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a tree of plain values that differ from `default`."""
    changes: dict[str, Any] = {}
    for name, value in now.items():
        other: Any = default.get(name)
        if name not in default or value != other:
            both = isinstance(value, Mapping) and isinstance(other, Mapping)
            changes[name] = difference(value, other) if both else value
    return changes


def literal(text: str) -> Any:
    """The text as a TOML value, or else as a string."""
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except (ValueError, RecursionError):
        return text


def dump(value: Any) -> Any:
    """As plain values (JSON, TOML): the inverse of `build`."""
    if isinstance(value, Parsed):
        return value.to_plain()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: dump(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return [dump(v) for v in value] if isinstance(value, tuple) else value  # pyright: ignore[reportUnknownVariableType]


@cache
def field_types(cls: type) -> dict[str, Any]:
    """The dataclass's settings with their full types, in field order."""
    hints = get_type_hints(cls, include_extras=True)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


@cache
def field_help(cls: type) -> dict[str, str]:
    """The string under each field, including inherited fields."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            texts |= help_in(ast.parse(inspect.cleandoc("\n" + inspect.getsource(base))).body[0])
    return texts


def summary_of(cls: type) -> str:
    """The first paragraph of a class's docstring as one line, without the full stop."""
    return " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split()).rstrip(".")


def help_in(node: ast.AST) -> dict[str, str]:
    """The strings directly below annotated names in a class body."""
    assert isinstance(node, ast.ClassDef)
    texts: dict[str, str] = {}
    for field, text in zip(node.body, node.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            constant = text.value
            if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                texts[field.target.id] = " ".join(constant.value.split())
    return texts


def convert(value: Any, kind: Any, at: str) -> Any:
    """The value as this type; raises ConfigError, naming `at`, if it does not fit."""
    origin = get_origin(kind)
    args = get_args(kind)
    if origin is Annotated:
        value = convert(value, args[0], at)
        for limit in args[1:]:
            if isinstance(limit, Range) and value is not None and value not in limit:
                raise ConfigError(f"{at} is {value!r}, but must be {limit}.")
        return value
    if origin in (Union, types.UnionType):
        return _convert_to_one(value, args, at)
    if origin is Literal:
        if not any(value == allowed and type(value) is type(allowed) for allowed in args):
            raise ConfigError(f"{at} is {value!r}: {nearest(str(value), map(str, args))}")
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            quotes = ": in a shell, put the setting in single quotes" if str(value).startswith("[") else ""
            raise ConfigError(f"{at} is {value!r}, but must be a list{quotes}.")
        return tuple(convert(v, args[0], f"{at}[{i}]") for i, v in enumerate(value))
    if dataclasses.is_dataclass(kind):
        return _table(value, kind, at)
    return _convert_plain(value, kind, at)


def _table(value: Any, kind: Any, at: str) -> Any:
    if isinstance(value, kind):
        if not isinstance(value, Parsed):
            check(value, at)
        return value
    if issubclass(kind, Parsed):
        return kind.parse(value, at)
    if not isinstance(value, Mapping):
        raise ConfigError(f"{at} is {value!r}, but must be a table with {', '.join(field_types(kind))}.")
    return build(kind, value, at)


def _convert_to_one(value: Any, kinds: tuple[Any, ...], at: str) -> Any:
    if types.NoneType in kinds and (value is None or value == "none"):
        return None
    rest = [k for k in kinds if k is not types.NoneType]
    for kind in rest[:-1]:
        try:
            return convert(value, kind, at)
        except ConfigError:
            continue
    return convert(value, rest[-1], at)


_WORDS: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}


def _convert_plain(value: Any, kind: Any, at: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < 1e300 else math.inf
    fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    if not fits or (kind is float and not math.isfinite(value)):
        raise ConfigError(f"{at} is {value!r}, but must be {_WORDS.get(kind, f'a {kind.__name__}')}.")
    return value


def _join(at: str, name: object) -> str:
    return f"{at}.{name}" if at else str(name)


def type_words(kind: Any) -> str:
    """What this type allows, for help: "a number, above 0"."""
    origin = get_origin(kind)
    args = get_args(kind)
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
