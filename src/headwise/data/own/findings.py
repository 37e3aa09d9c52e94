"""Problems in data, with their locations: collected by `headwise data check`, raised by a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...errors import DataError

MOST = 5
"""findings of one kind in one column of a file that are listed; the rest are counted"""


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
    """in which the row is, of data that was passed in Python"""

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


Report = Callable[[DataFinding], None]


def strictly(finding: DataFinding) -> None:
    """What a run does: raise the first error, and ignore warnings."""
    if finding.level == "error":
        raise DataError(str(finding))


class Findings:
    """Collects findings; beyond `MOST` of one kind in one column of a file, they are only counted."""

    def __init__(self) -> None:
        self._found: list[DataFinding] = []
        self._counts: Counter[tuple[str, Path | str | None, str]] = Counter()

    def __call__(self, finding: DataFinding) -> None:
        key = (finding.kind, finding.file, finding.column)
        self._counts[key] += 1
        if self._counts[key] <= MOST:
            self._found.append(finding)

    def all(self) -> list[DataFinding]:
        """Errors first, each in the order found, with a summary of those that were only counted."""
        more = [
            DataFinding(next(f.level for f in self._found if f.kind == kind), kind, f"{n - MOST:,} more: {kind}.", file)
            for (kind, file, _), n in self._counts.items()
            if n > MOST
        ]
        return sorted([*self._found, *more], key=lambda f: f.level == "warning")
