"""Plain values of an experiment: read from TOML, and changed by ``--set a.b=c``."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from . import catalog
from .experiment import Choice, literal


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:  # not only TOMLDecodeError: long numbers, deep tables
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error


def override(values: Mapping[str, Any], changes: Iterable[str]) -> dict[str, Any]:
    """The values with ``a.b=c`` changes applied in order."""
    result = dict(values)
    for change in changes:
        path, sign, text = change.partition("=")
        if not sign or not path.strip():
            raise ConfigError(f"--set is {change!r}, but must look like train.lr=0.1.")
        put(result, path.strip(), literal(text.strip()))
    return result


def put(values: dict[str, Any], path: str, value: Any) -> None:
    """Set ``a.b`` in nested tables; a name such as method = "fedrep" becomes a table when one of its options is set."""
    *tables, last = path.split(".")
    for name in tables:
        inner = values.get(name, {})
        if isinstance(inner, str) and name in catalog.ROOMS:
            inner = Choice.parse(inner, name).plain()
        if not isinstance(inner, Mapping):
            raise ConfigError(f"{path} can't be set: {name} is {inner!r}, not a table.")
        values[name] = values = dict(inner)
    values[last] = value
