"""A trace: a file that says which clients there are in each round.

JSON: a list with one list of clients per round. Anything else is text with one line per round, clients separated by
commas as in CSV; lines that begin with # are comments, and in a round with an empty line nobody trains. Clients are
named or numbered.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError, counted, nearest

Trace = tuple[tuple[int, ...], ...]
"""the clients of each round, ascending"""


def read_trace(path: Path, clients: int, names: Sequence[str], rounds: int) -> Trace:
    """Which clients take part in rounds 1, 2, ...; at least as many as the run has."""
    said = f"sampling.trace is {str(path)!r}"
    rows = _rows(path, said)
    if len(rows) < rounds:
        raise ConfigError(f"{said}, which has {counted(len(rows), 'round')}, but rounds is {rounds}.")
    numbers = {name: c for c, name in enumerate(names)}
    return tuple(_clients(row, clients, numbers, f"{said}, whose round {t}") for t, row in enumerate(rows, 1))


def _rows(path: Path, said: str) -> list[list[Any]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{said}, which can't be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{said}, which is not text in UTF-8.") from error
    if path.suffix != ".json":
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        return [next(csv.reader([line], skipinitialspace=True), []) for line in lines]
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{said}, which is not valid JSON: {error}.") from error
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise ConfigError(f"{said}, which must hold a list with one list of clients per round.")
    return rows


def _clients(row: Sequence[Any], clients: int, numbers: dict[str, int], said: str) -> tuple[int, ...]:
    """The numbers of a round's clients; a name comes first, even if it looks like a number."""
    found: list[int] = []
    for who in row:
        cell = who.strip() if isinstance(who, str) else who
        c = numbers.get(cell) if isinstance(cell, str) else cell
        if c is None and isinstance(cell, str) and cell.isascii() and cell.isdigit() and len(cell) < 10:
            c = int(cell)
        if not isinstance(c, int) or isinstance(c, bool) or not 0 <= c < clients:
            few = 0 < len(numbers) <= 1000
            known = nearest(str(who), numbers, "they are") if few else f"they are 0 to {clients - 1}."
            raise ConfigError(f"{said} names the client {who!r}, whom nobody knows: {known}")
        found.append(c)
    if len(set(found)) < len(found):
        twice = next(c for c in found if found.count(c) > 1)
        raise ConfigError(f"{said} names client {twice} twice.")
    return tuple(sorted(found))
