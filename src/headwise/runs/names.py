"""What a run's clients are called, beside their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import RunError, nearest

LISTED = 1000
"""names among which a similar one is looked for: with more, it takes seconds"""


def names_in(partition: dict[str, Any], path: Path) -> tuple[str, ...]:
    """The clients' names in the order of their numbers; empty if the data has none."""
    names = tuple(partition.get("names", ()))
    counted = len(partition["train"]) or len(names)  # sites may have names, but not tell what they have
    if names and (len(names) != counted or len(set(names)) < len(names)):
        raise RunError(f"{path} is damaged: it must have one name for each client.")
    return names


def number_of(who: str | int, names: Sequence[str], clients: int, path: Path) -> int:
    """The number of the client with this name or number; a name comes first, even if it looks like a number."""
    if isinstance(who, str) and who in names:
        return names.index(who)
    c = int(who) if isinstance(who, str) and who.isascii() and who.isdigit() else who
    if isinstance(c, int) and not isinstance(c, bool) and 0 <= c < clients:
        return c
    hint = f"its clients are 0 to {clients - 1}."
    if names and isinstance(who, str):
        hint = nearest(who, names) if len(names) <= LISTED else f"it has {len(names):,} others."
    raise RunError(f"{path} has no client {who!r}: {hint}")
