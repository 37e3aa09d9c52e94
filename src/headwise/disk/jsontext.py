"""Writes JSON, TOML and CSV values, for files, messages and the command line."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any


def to_json(value: Any, *, indent: int | None = None, sort_keys: bool = False, ensure_ascii: bool = True) -> str:
    """Standard JSON, which has no infinity or NaN: the loss of a diverged model becomes null."""
    settings: dict[str, Any] = {"indent": indent, "sort_keys": sort_keys, "ensure_ascii": ensure_ascii}
    try:
        return json.dumps(value, allow_nan=False, **settings)
    except ValueError:
        return json.dumps(_drop_infinite(value), allow_nan=False, **settings)


def to_toml(value: Any) -> str:
    """A value in TOML, on one line; None, which TOML lacks, becomes 'none'.

    Strings are as in JSON, but non-ASCII stays as it is and DEL is escaped.
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{to_toml(k)} = {to_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(to_toml, value))}]"
    return to_json("none" if value is None else value, ensure_ascii=False).replace("\x7f", "\\u007f")


def escape_controls(text: str) -> str:
    """The text, with every character that can't be printed escaped as in Python."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def csv_cell(value: Any) -> Any:
    """A text as a cell that a spreadsheet takes for text: control characters are escaped, a formula gets an apostrophe.

    Numbers, and texts that are numbers, stay as they are.
    """
    if not isinstance(value, str):
        return value
    text = escape_controls(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def leaves(tree: Mapping[str, Any], at: str = "", between: str = ".") -> Iterator[tuple[str, Any]]:
    """The values of nested objects by their full names: ``{"train": {"lr": 0.1}}`` has one, ``train.lr``."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{at}{key}{between}", between)
        else:
            yield f"{at}{key}", value


def _drop_infinite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _drop_infinite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_drop_infinite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
