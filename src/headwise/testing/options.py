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
    choices = [v for v in _choices(kind) if v != value]
    numbers = [v for v in _numbers(kind, value) if v != value and _allowed(v, kind)]
    return choices, list(dict.fromkeys(numbers))


def variants(method: AnyMethod) -> Iterator[AnyMethod]:
    """The method as given, with each preset, and with each other choice of each option."""
    yield from _contexts(method, "")


def neighbours(method: AnyMethod, name: str, value: object) -> Iterator[tuple[AnyMethod, AnyMethod]]:
    """Pairs of methods that differ in this option only: as given, with each preset, with each choice elsewhere."""
    for base in _contexts(method, name):
        try:
            yield base, _replace(base, name, value)
        except (ConfigError, ValueError):  # the method does not allow these together
            continue


def _contexts(method: AnyMethod, name: str) -> Iterator[AnyMethod]:
    yield method
    for preset in type(method).presets.values():
        yield dataclasses.replace(method, **preset)  # pyright: ignore[reportArgumentType]
    for field in dataclasses.fields(method):  # pyright: ignore[reportArgumentType]
        for choice in alternatives(method, field.name)[0] if field.name != name else ():
            try:
                yield _replace(method, field.name, choice)
            except (ConfigError, ValueError):
                continue


def _replace(method: AnyMethod, name: str, value: object) -> AnyMethod:
    return dataclasses.replace(method, **{name: value})  # pyright: ignore[reportArgumentType]


def _choices(kind: Any) -> list[Any]:
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return list(args)
    if origin is Annotated:
        return _choices(args[0])
    if origin in (Union, types.UnionType):
        return [c for k in args for c in _choices(k)]
    return {bool: [False, True], types.NoneType: [None]}.get(kind, [])


def _numbers(kind: Any, value: Any) -> list[Any]:
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _numbers(args[0], value)
    if origin in (Union, types.UnionType):
        return [n for k in args for n in _numbers(k, value)]
    now = 1 if value is None or isinstance(value, str) else value
    if kind is int:
        return [now + 1, now - 1, 2 * now, 0, 1]
    if kind is float:
        return [2.0 * now, now / 2, now + 0.1, now - 0.1, 100.0 * now, now / 100, 0.0, 1.0]
    return []


def _allowed(value: Any, kind: Any) -> bool:
    try:
        convert(value, kind, "value")
    except ConfigError:
        return False
    return True
