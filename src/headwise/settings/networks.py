"""Recognises a user's own network where a model's name is expected; nothing is imported for it."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import ConfigError, nearest
from . import catalog
from .fields import build

NETWORK = "network"
"""the name of such a choice; not in the catalog, because sites run only what their own Headwise includes"""


def own_network(value: Any) -> tuple[dict[str, Any], tuple[str, ...], Any] | None:
    """Options, positional options and object of a choice; None if this is not a network of a user's own."""
    if isinstance(value, str):
        place, _, rest = value.partition(":")
        name, *more = rest.split(":")
        factory = _in_file(place, name) if place.endswith(".py") else _in_module(place, name)
        return ({"factory": factory, **_options(value, more)}, (), None) if factory else None
    return ({}, (), value) if callable(value) else None


def made_network(options: Mapping[str, Any], given: Any) -> Any:
    """The `Model` of such a choice, with its options checked."""
    module = importlib.import_module("headwise.models.network")  # by name, because it needs torch
    stored = build(module.OwnNetwork, options, "model")
    return stored if given is None else module.SessionNetwork(given, stored)


def _options(value: str, more: list[str]) -> dict[str, str]:
    if wrong := [part for part in more if not part.startswith("head=")]:
        raise ConfigError(f"model is {value!r}, but after the factory only head=LAYER may follow, not {wrong[0]!r}.")
    return dict(part.split("=", 1) for part in more)


def _in_module(place: str, name: str) -> str:
    """The name of a factory in a module; empty if this is one of our models with an option."""
    dotted = all(part.isidentifier() for part in place.split("."))
    if not dotted or not name.isidentifier() or place in catalog.names("model"):
        return ""
    try:
        return f"{place}:{name}" if "." in place or importlib.util.find_spec(place) else ""
    except (ImportError, ValueError):
        return ""


def _in_file(place: str, name: str) -> str:
    """The name of a factory in a file; empty if the file defines a `Model`, whose options follow its name."""
    path = Path(place)
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError):
        return ""  # the catalog says what is wrong
    defined = [n for n in body if isinstance(n, (ast.ClassDef, ast.FunctionDef))]
    main = next((n for n in defined if n.name.lower() == path.stem.replace("_", "").lower()), None)
    if not name:
        is_module = isinstance(main, ast.ClassDef) and any(ast.unparse(b).endswith("Module") for b in main.bases)
        return f"{path.resolve()}:{main.name}" if main and (is_module or isinstance(main, ast.FunctionDef)) else ""
    known = [n.name for n in defined] + [ast.unparse(t) for n in body if isinstance(n, ast.Assign) for t in n.targets]
    if name in known:
        return f"{path.resolve()}:{name}"
    if main is None and name.isidentifier():
        raise ConfigError(f"model is {f'{place}:{name}'!r}, but {place} defines no {name}: {nearest(name, known)}")
    return ""
