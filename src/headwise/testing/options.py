"""Other values for a method's options, from their types and ranges."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from ..errors import ConfigError
from ..settings.fields import convert, field_types
from .toy import AnyMethod


def alternatives(method: AnyMethod, name: str) -> tuple[list[Any], list[Any]]:
    """An option's other choices, each of which must matter, and other numbers, at least one of which must."""
    kind, value = field_types(type(method))[name], getattr(method, name)
    choices = [v for leaf in _leaves(kind) for v in _choices(leaf) if v != value]
    numbers = [v for leaf in _leaves(kind) for v in _numbers(leaf, value) if v != value and _is_allowed(v, kind)]
    return choices, list(dict.fromkeys(numbers))


def variants(method: AnyMethod) -> Iterator[AnyMethod]:
    """The method as given, with each preset, and with each other choice of each option."""
    yield from _contexts(method, "")


def neighbours(method: AnyMethod, name: str, value: object) -> Iterator[tuple[AnyMethod, AnyMethod]]:
    """Pairs of methods that differ in this option only: as given, with each preset, with each choice elsewhere."""
    for base in _contexts(method, name):
        yield from ((base, other) for other in _with(base, name, value))


def _contexts(method: AnyMethod, name: str) -> Iterator[AnyMethod]:
    yield method
    for preset in type(method).presets.values():
        yield dataclasses.replace(method, **preset)  # pyright: ignore[reportArgumentType]
    for field in dataclasses.fields(method):  # pyright: ignore[reportArgumentType]
        for choice in alternatives(method, field.name)[0] if field.name != name else ():
            yield from _with(method, field.name, choice)


def _with(method: AnyMethod, name: str, value: object) -> list[AnyMethod]:
    """The method with this option, or nothing if it does not allow that together with the others."""
    try:
        return [dataclasses.replace(method, **{name: value})]  # pyright: ignore[reportArgumentType]
    except (ConfigError, ValueError):
        return []


def _leaves(kind: Any) -> list[Any]:
    """The plain types that a type is made of."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _leaves(args[0])
    return [leaf for k in args for leaf in _leaves(k)] if origin in (Union, types.UnionType) else [kind]


def _choices(kind: Any) -> tuple[Any, ...]:
    if get_origin(kind) is Literal:
        return get_args(kind)
    return {bool: (False, True), types.NoneType: (None,)}.get(kind, ())


def _numbers(kind: Any, value: Any) -> list[Any]:
    now = 1 if value is None or isinstance(value, str) else value
    if kind is int:
        return [now + 1, now - 1, 2 * now, 0, 1]
    if kind is float:
        return [2.0 * now, now / 2, now + 0.1, now - 0.1, 100.0 * now, now / 100, 0.0, 1.0]
    return []


def _is_allowed(value: Any, kind: Any) -> bool:
    try:
        convert(value, kind, "value")
    except ConfigError:
        return False
    return True
