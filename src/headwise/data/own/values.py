"""Converts cells to numbers: categories and labels by a list of values, texts by hashing their words."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..dataset import LabelType

BAG = 4096
"""maximum number of buckets of a bag of words"""

_WHOLE = re.compile(r"([+-]?\d+)\.0+")
_WORD = re.compile(r"\w+")


def cell_text(cell: Any) -> str:
    """A cell as text; integers are normalized, so that 1.0 and 1 are the same category."""
    if isinstance(cell, bool | np.bool_):
        return str(int(cell))
    text = str(cell).strip()
    whole = _WHOLE.fullmatch(text)
    return whole[1] if whole else text


class Codes(dict[Any, int]):
    """The code of each cell: from 0 in the order in which values are first seen, -1 if missing."""

    def __init__(self, missing: Collection[str], separator: str = "") -> None:
        self._missing = frozenset(missing)
        self._separator = separator
        self.values_seen: dict[Any, int] = {}
        """strings, or tuples of strings if cells have several labels"""
        self.types_seen: set[type] = set()
        """of the cells that are not missing"""

    def __missing__(self, cell: Any) -> int:
        value = self._read_value(cell)
        code = -1 if value is None else self.values_seen.setdefault(value, len(self.values_seen))
        if value is not None:
            self.types_seen.add(type(cell))
        if cell == cell:  # NaN would be a new key each time
            self[cell] = code
        return code

    def of(self, cells: NDArray[Any]) -> NDArray[np.int64]:
        """The codes of a column."""
        if cells.dtype.kind in "iu":  # look up each different value once
            different, places = np.unique(cells, return_inverse=True)
            return np.array([self[c] for c in different.tolist()], np.int64)[places]
        try:
            return np.array([self[c] for c in cells.tolist()], np.int64)
        except TypeError:  # lists are not hashable
            return np.array([self[tuple(c) if isinstance(c, list) else c] for c in cells.tolist()], np.int64)

    def list_values(self) -> list[Any]:
        """The value of each code."""
        return list(self.values_seen)

    def label_type(self) -> LabelType:
        """The type of the cells: the widest of bool, int and float, or else text."""
        if not self.types_seen or not self.types_seen <= {bool, int, float}:
            return "str"
        return "float" if float in self.types_seen else "int" if int in self.types_seen else "bool"

    def _read_value(self, cell: Any) -> Any:
        if cell is None or cell != cell:
            return None
        if isinstance(cell, tuple):
            return tuple(map(cell_text, cell))
        text = cell_text(cell)
        if self._separator:
            return tuple(part for each in text.split(self._separator) if (part := each.strip()))
        return None if text in self._missing else text


def guess_label_type(texts: Collection[str]) -> LabelType:
    """The type that all cells of a CSV file look like; a number with a leading zero is a name."""
    if texts and {t.lower() for t in texts} <= {"true", "false"}:
        return "bool"
    if texts and all(re.fullmatch(r"[+-]?(0|[1-9]\d{0,17})", t, re.ASCII) for t in texts):
        return "int"
    if texts and all(re.fullmatch(r"[+-]?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d{1,2})?", t, re.ASCII) for t in texts):
        return "float"
    return "str"


def to_numbers(cells: NDArray[Any], missing: Collection[str]) -> tuple[NDArray[np.float64], list[int]]:
    """A column as numbers, NaN if missing, and the indices of cells that are not numbers."""
    if cells.dtype.kind in "iufb":
        return cells.astype(np.float64), []
    plain = [math.nan if c is None or (isinstance(c, str) and c.strip() in missing) else c for c in cells.tolist()]
    try:
        numbers = np.array(plain, dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        numbers = None
    if numbers is not None and numbers.ndim == 1:  # lists of one length would make a matrix
        return numbers, []
    values = [to_number(cell) for cell in plain]
    wrong = [i for i, value in enumerate(values) if value is None]
    return np.array([math.nan if value is None else value for value in values]), wrong


def to_number(cell: Any) -> float | None:
    """The cell as a number, or None if it is not one."""
    try:
        return float(cell)
    except (ValueError, TypeError, OverflowError):
        return None


_DAYS = (
    *("%d.%m.%Y", "%m.%d.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y.%m.%d"),
    *("%d.%m.%y", "%m.%d.%y", "%d/%m/%y", "%m/%d/%y", "%d-%m-%y", "%m-%d-%y", "%y/%m/%d", "%y-%m-%d"),
    *("%d-%b-%Y", "%d %b %Y", "%d %B %Y", "%d. %B %Y", "%b %d %Y", "%B %d %Y", "%b %d, %Y", "%B %d, %Y", "%d-%b-%y"),
    *("%Y-%m", "%m/%Y", "%b %Y", "%B %Y", "%b-%Y", "%a %b %d %Y", "%a, %d %b %Y"),
)
_TIMES = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p", " %H:%M:%S %z", "T%H:%M:%S")
DATES = ("ISO 8601", *(day + time for day in _DAYS for time in _TIMES))
"""the ways to write a date that are tried; if two of them fit and differ, a user must choose"""


class DateError(ValueError):
    """A text that is not a date, or that can be read in two ways."""

    def __init__(self, text: str, problem: str) -> None:
        super().__init__(problem)
        self.text = text


def are_dates(texts: Collection[str]) -> bool:
    """Whether all texts are dates, written in the same way."""
    plausible = all(len(text) < 40 and re.search(r"\d", text) for text in texts)
    return plausible and any(len([*_read_dates(texts, way)]) == len(texts) for way in DATES)


def parse_dates(texts: Collection[str], format: str = "") -> dict[str, float]:
    """The seconds from 1970 to each date; raises a DateError unless all can be read in one way only."""
    ways: dict[str, list[float]] = {}
    closest = ("", 0)
    for way in [format] if format else DATES:
        seconds = [*_read_dates(texts, way)]
        if len(seconds) == len(texts):
            ways[way] = seconds
        closest = max(closest, (way, len(seconds)), key=lambda each: each[1])
    if not ways:
        text = [*texts][closest[1]]
        written = format or closest[0] * (closest[1] > 0)
        raise DateError(text, f"{text!r} is not a date{f' written as {written}' * bool(written)}: see split.format.")
    (first, seconds), *others = ways.items()
    for way, values in others:
        if values != seconds:
            text = next(t for t, a, b in zip(texts, seconds, values, strict=True) if a != b)
            raise DateError(text, f"{text!r} can be read as {first} or as {way}: set split.format to one of them.")
    return dict(zip(texts, seconds, strict=True))


def _read_dates(texts: Iterable[str], way: str) -> Iterator[float]:
    """The dates up to the first one that is written in another way."""
    for text in texts:
        try:
            date = datetime.fromisoformat(text) if way == DATES[0] else datetime.strptime(text, way)
        except ValueError:
            return
        yield (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def split_words(text: str) -> list[str]:
    """Words in lower case, without punctuation."""
    return _WORD.findall(text.lower())


class Hashing(dict[str, int]):
    """The bucket of each word, from 1 to `buckets` - 1, the same on every machine; 0 pads short texts."""

    def __init__(self, buckets: int) -> None:
        self._buckets = buckets

    def __missing__(self, word: str) -> int:
        self[word] = number = zlib.crc32(word.encode("utf-8", "replace")) % (self._buckets - 1) + 1
        return number

    def encode(self, texts: Iterable[Any], length: int) -> NDArray[np.int32]:
        """A row of word buckets for each text; a missing text has no words."""
        cells = ["" if t is None or t != t else str(t) for t in texts]
        x = np.zeros((len(cells), length), np.int32)
        for row, text in zip(x, cells, strict=True):
            buckets = [self[word] for word in split_words(text)[:length]]
            row[: len(buckets)] = buckets
        return x


LENGTH = np.float32(12)


def count_words(tokens: NDArray[Any], buckets: int) -> NDArray[Any]:
    """Square roots of word counts, so that "the" does not outweigh all other words; each row has the same norm, so that
    long texts weigh no more than short ones.

    The norm is that of 144 standardized numbers: rows of norm 1 would need a learning rate 144 times as high.
    """
    tokens = tokens.astype(np.int64)
    counts = np.zeros((len(tokens), buckets), np.float32)
    np.add.at(counts, (np.arange(len(tokens))[:, None], tokens), np.float32(1))
    counts[:, 0] = 0
    norm = np.sqrt(counts.sum(1, keepdims=True))  # of the roots: exact, because counts are whole
    return np.sqrt(counts) * (LENGTH / np.where(norm > 0, norm, LENGTH))
