"""Tables that were passed in Python: findings name the user's table and its row, not the file that holds the copy."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from ...disk.files import read_json, write_json
from .description import Description
from .findings import DataFinding, Report

ROWS = ".headwise-rows.json"
"""beside the copy: which of its lines come from which table"""


class PassedTable(NamedTuple):
    first: int
    """its first line in the copy, counted from 1"""
    client: str
    """whose table it is; empty: that of all clients"""
    part: str
    """train, val or test, if the client has several"""


def write_passed(tables: Sequence[PassedTable], home: Path) -> None:
    write_json(home / ROWS, tables)


def naming_passed(d: Description, report: Report) -> Report:
    """The same report, of findings as their user knows them."""
    return lambda finding: report(as_passed(d, finding))


def as_passed(d: Description, finding: DataFinding) -> DataFinding:
    """The finding in the table that was passed, whose rows count from 0; others stay as they are."""
    if d.format != "jsonl" or finding.file != d.place or not (tables := _tables(d.place.parent / ROWS)):
        return finding
    if finding.row is None:
        return replace(finding, file="clients")
    first, client, part = tables[bisect_right(tables, finding.row, key=lambda table: table.first) - 1]
    row = finding.row - first
    return replace(finding, file="clients", row=row, part=part, client=client or finding.client)


@lru_cache(8)
def _tables(path: Path) -> list[PassedTable]:
    return [PassedTable(*entry) for entry in read_json(path)] if path.is_file() else []
