"""Cells become numbers: categories and labels by a list of what occurs, texts by hashing their words."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

BAG = 4096
"""words that a bag tells apart, at most"""

_WHOLE = re.compile(r"([+-]?\d+)\.0+")
_WORD = re.compile(r"\w+|[^\w\s]")


def written(cell: Any) -> str:
    """A cell as a text; a whole number is written as one, whatever the file does: 1.0 and 1 are the same category."""
    if isinstance(cell, bool | np.bool_):
        return str(int(cell))
    text = str(cell).strip()
    found = _WHOLE.fullmatch(text)
    return found[1] if found else text


class Codes(dict[Any, int]):
    """The number of each cell: from 0 in the order in which values are first seen, -1 where one is missing."""

    def __init__(self, missing: Collection[str], separator: str = "") -> None:
        self._missing, self._separator = frozenset(missing), separator
        self.values_seen: dict[Any, int] = {}
        """texts, or tuples of texts where a cell has several labels"""

    def __missing__(self, cell: Any) -> int:
        value = self._value(cell)
        code = -1 if value is None else self.values_seen.setdefault(value, len(self.values_seen))
        if cell == cell:  # NaN is a new key each time
            self[cell] = code
        return code

    def of(self, cells: NDArray[Any]) -> NDArray[np.int64]:
        """All of a column."""
        if cells.dtype.kind in "iu":  # of many equal ones each is looked up once
            different, places = np.unique(cells, return_inverse=True)
            return np.array([self[c] for c in different.tolist()], np.int64)[places]
        try:
            return np.array([self[c] for c in cells.tolist()], np.int64)
        except TypeError:  # lists can't be looked up
            return np.array([self[tuple(c) if isinstance(c, list) else c] for c in cells.tolist()], np.int64)

    def seen(self) -> list[Any]:
        """The value of each number."""
        return list(self.values_seen)

    def _value(self, cell: Any) -> Any:
        if cell is None or cell != cell:
            return None
        if isinstance(cell, tuple):
            return tuple(map(written, cell))
        text = written(cell)
        if self._separator:
            return tuple(part for each in text.split(self._separator) if (part := each.strip()))
        return None if text in self._missing else text


def to_numbers(cells: NDArray[Any], missing: Collection[str], wrong: Callable[[int], None]) -> NDArray[np.float64]:
    """A column of numbers, NaN where one is missing; `wrong` is told of cells that are none."""
    if cells.dtype.kind in "iufb":
        return cells.astype(np.float64)
    plain = [math.nan if c is None or (isinstance(c, str) and c.strip() in missing) else c for c in cells.tolist()]
    try:
        return np.array(plain, dtype=np.float64)
    except (ValueError, TypeError):
        return np.array([_number(c, i, wrong) for i, c in enumerate(plain)])


def _number(cell: Any, i: int, wrong: Callable[[int], None]) -> float:
    try:
        return float(cell)
    except (ValueError, TypeError):
        wrong(i)
        return math.nan


def words(text: str) -> list[str]:
    """Lower-case words and marks."""
    return _WORD.findall(text.lower())


class Hashing(dict[str, int]):
    """The number of each word, from 1 to `buckets` - 1, the same on every machine; 0 fills short texts."""

    def __init__(self, buckets: int) -> None:
        self._buckets = buckets

    def __missing__(self, word: str) -> int:
        self[word] = number = zlib.crc32(word.encode("utf-8", "replace")) % (self._buckets - 1) + 1
        return number

    def tokens(self, texts: Iterable[Any], length: int) -> NDArray[np.int32]:
        """A row of word numbers for each text; a missing one has none."""
        cells = ["" if t is None or t != t else str(t) for t in texts]
        x = np.zeros((len(cells), length), np.int32)
        for row, text in zip(x, cells, strict=True):
            found = [self[word] for word in words(text)[:length]]
            row[: len(found)] = found
        return x


LENGTH = np.float32(6)


def bags(tokens: NDArray[Any], buckets: int) -> NDArray[Any]:
    """How often each word occurs, each row scaled to one length so that long texts weigh no more than short ones.

    The length is about that of the counts of a short text, or of 36 standardised numbers: rows of length 1 would need
    a learning rate 36 times as high.
    """
    tokens = tokens.astype(np.int64)
    counts = np.zeros((len(tokens), buckets), np.float32)
    np.add.at(counts, (np.arange(len(tokens))[:, None], tokens), np.float32(1))
    counts[:, 0] = 0
    norm = np.sqrt((counts * counts).sum(1, keepdims=True))
    return counts * (LENGTH / np.where(norm > 0, norm, LENGTH))
