"""The one writer of JSON, and of TOML's values: for files, messages and what the command line prints."""

from __future__ import annotations

import json
import math
from typing import Any


def to_json(value: Any, *, indent: int | None = None, sort_keys: bool = False, ensure_ascii: bool = True) -> str:
    """JSON as its standard has it, which knows no infinity: the loss of a model that diverged becomes null."""
    settings: dict[str, Any] = {"indent": indent, "sort_keys": sort_keys, "ensure_ascii": ensure_ascii}
    try:
        return json.dumps(value, allow_nan=False, **settings)
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, **settings)


def to_toml(value: Any) -> str:
    """A text, a number, a truth value or a list of them as TOML writes it: JSON, but for two kinds of characters."""
    return to_json(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
