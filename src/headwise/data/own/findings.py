"""Problems in data, with their locations: collected by `headwise data check`, raised by a run.

Findings about tables that were passed in Python name the user's table and its row, not the file that holds the copy.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from ...disk.files import read_json
from ...errors import DataError, RunError, pluralize
from .description import Description

MOST = 5
"""findings of one kind in one column of a file that are listed; the rest are counted"""
LISTED = 10
"""row numbers in one message"""
ROWS = ".headwise-rows.json"
"""beside the copy of tables that were passed in Python: which of its lines come from which table"""


@dataclass(frozen=True)
class DataFinding:
    """One problem: an error, which a run refuses, or a warning."""

    level: Literal["error", "warning"]
    kind: str
    """the problem in a few words, the same for all findings of its kind"""
    text: str
    file: Path | str | None = None
    """a string for what was passed in Python"""
    row: int | None = None
    """as an editor or a spreadsheet counts: a header is row 1; from 0 for what was passed in Python"""
    column: str = ""
    client: str = ""
    part: str = ""
    """the part that holds the row, for data that was passed in Python"""

    @property
    def where(self) -> str:
        parts = [
            str(self.file or ""),
            "" if self.row is None else f"row {self.row}{self.part and f' of {self.part}'}",
            self.column and f"column {self.column!r}",
            self.client and f"client {self.client!r}",
        ]
        return ", ".join(part for part in parts if part)

    def __str__(self) -> str:
        return f"{self.where}: {self.text}" if self.where else self.text


def list_rows(rows: Sequence[int], noun: str = "row") -> str:
    """For a message: how many rows, and which.

    >>> list_rows([3, 5])
    '2 rows: 3, 5'
    """
    if len(rows) == 1:
        return f"{noun} {rows[0]}"
    return f"{pluralize(len(rows), noun)}: {', '.join(map(str, rows[:LISTED]))}{', ...' if len(rows) > LISTED else ''}"


Report = Callable[[DataFinding], None]


def raise_errors(finding: DataFinding) -> None:
    """What a run does: raise the first error, and ignore warnings."""
    if finding.level == "error":
        raise DataError(str(finding))


class Findings:
    """Collects findings; beyond `MOST` of one kind in one column of a file, they are only counted."""

    def __init__(self) -> None:
        self._listed: list[DataFinding] = []
        self._counts: Counter[tuple[str, Path | str | None, str]] = Counter()

    def __call__(self, finding: DataFinding) -> None:
        key = (finding.kind, finding.file, finding.column)
        self._counts[key] += 1
        if self._counts[key] <= MOST:
            self._listed.append(finding)

    def all(self) -> list[DataFinding]:
        """Errors first, in the order of their reports, with a summary of those that were only counted."""
        levels: dict[str, Literal["error", "warning"]] = {f.kind: f.level for f in self._listed}
        more = [
            DataFinding(levels[kind], kind, f"{n - MOST:,} more: {kind}.", file)
            for (kind, file, _), n in self._counts.items()
            if n > MOST
        ]
        return sorted([*self._listed, *more], key=lambda f: f.level == "warning")


class PassedTable(NamedTuple):
    first: int
    """its first line in the copy, counted from 1"""
    client: str
    """the client that the table belongs to; empty: all clients"""
    part: str
    """train, val or test, if the client has several"""


def name_passed(d: Description, report: Report) -> Report:
    """The same report, with locations as the user knows them."""
    return lambda finding: report(as_passed(d, finding))


def as_passed(d: Description, finding: DataFinding) -> DataFinding:
    """The finding with its location in the table that was passed, whose rows count from 0; others are unchanged."""
    if d.format != "jsonl" or finding.file != d.place or not (tables := _read_tables(d.place.parent / ROWS)):
        return finding
    if finding.row is None:
        return replace(finding, file="clients")
    first, client, part = tables[bisect_right(tables, finding.row, key=lambda table: table.first) - 1]
    row = finding.row - first
    return replace(finding, file="clients", row=row, part=part, client=client or finding.client)


@lru_cache(8)
def _read_tables(path: Path) -> list[PassedTable]:
    """Empty if there is no such file, or if it is damaged: findings then name the copy."""
    try:
        entries = [PassedTable(*entry) for entry in read_json(path, absent=b"[]")]
    except (TypeError, RunError):
        return []
    kinds = (int, str, str)
    return entries if all(isinstance(v, k) for e in entries for v, k in zip(e, kinds, strict=True)) else []
