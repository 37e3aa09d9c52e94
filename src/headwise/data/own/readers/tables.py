"""Reads tables in blocks of rows: CSV and JSONL with the standard library, Parquet with pyarrow."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import DataError, nearest
from ..description import Description
from ..findings import DataFinding, Report

ROWS = 65_536
"""rows per block"""
COLUMNS = "its columns are"


@dataclass(frozen=True)
class RowBlock:
    """Rows of one file, column by column: numbers, or objects (strings, lists, None)."""

    file: Path
    first: int
    """the number of the first row, as an editor or a spreadsheet counts"""
    columns: dict[str, NDArray[Any]]
    lines: NDArray[np.int64] | None = None
    """the number of each row, if rows were left out or span several lines"""

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def row(self, i: int) -> int:
        """The number of its i-th row in the file."""
        return self.first + i if self.lines is None else int(self.lines[i])


def blocks(path: Path, d: Description, columns: Sequence[str], report: Report) -> Iterator[RowBlock]:
    """A table's rows with these columns; unreadable rows are reported and left out."""
    reader = {"csv": _csv, "jsonl": _jsonl, "parquet": _parquet}[d.format]
    try:
        if d.format == "jsonl" or _has_columns(path, columns, columns_of(path, d), report):
            yield from reader(path, d, columns, report)
    except OSError as error:
        report(DataFinding("error", "unreadable file", f"it can't be read: {error.strerror or error}.", path))
    except UnicodeDecodeError as error:
        report(DataFinding("error", "unreadable file", f"it is not UTF-8 text: byte {error.start} is invalid.", path))
    except csv.Error as error:
        report(DataFinding("error", "unreadable file", f"it is not valid CSV: {error}.", path))


def columns_of(path: Path, d: Description) -> list[str]:
    """The names of a table's columns; for JSONL, the keys of the first row."""
    if d.format == "parquet":
        return list(_arrow_file(path).schema_arrow.names)
    with path.open(encoding="utf-8-sig", newline="") as file:
        if d.format == "csv":
            return list(d.header) or next(csv.reader(file, delimiter=d.delimiter), [])
        row = _parsed(next((line for line in file if line.strip()), ""))
        return list(row or {})


def _csv(path: Path, d: Description, columns: Sequence[str], report: Report) -> Iterator[RowBlock]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=d.delimiter)
        head = list(d.header) or next(reader, [])
        at = [head.index(name) for name in columns]
        while chunk := [(reader.line_num, row) for row in islice(reader, ROWS)]:
            kept: list[list[str]] = []
            lines: list[int] = []
            for line, row in chunk:
                if len(row) == len(head):
                    kept.append(row)
                    lines.append(line)
                elif row:
                    text = f"it has {len(row)} cells, but there are {len(head)} columns."
                    report(DataFinding("error", "wrong number of cells", text, path, line))
            if kept:
                cells = np.array(kept, dtype=object)
                found = {name: cells[:, i] for name, i in zip(columns, at, strict=True)}
                yield RowBlock(path, lines[0], found, np.array(lines, np.int64))


def _jsonl(path: Path, d: Description, columns: Sequence[str], report: Report) -> Iterator[RowBlock]:
    with path.open(encoding="utf-8-sig") as file:
        numbered = enumerate(file, start=1)
        while chunk := list(islice(numbered, ROWS)):
            kept: list[dict[str, Any]] = []
            lines: list[int] = []
            for line, text in chunk:
                if text.strip() and (row := _object(path, line, text, columns, report)) is not None:
                    kept.append(row)
                    lines.append(line)
            if kept:
                found = {name: _objects([row.get(name) for row in kept]) for name in columns}
                yield RowBlock(path, lines[0], found, np.array(lines, np.int64))


def _object(path: Path, line: int, text: str, columns: Sequence[str], report: Report) -> dict[str, Any] | None:
    row = _parsed(text)
    if row is None:
        report(DataFinding("error", "not a JSON object", "it is not a JSON object.", path, line))
        return None
    if absent := [name for name in columns if name not in row]:
        text = f"it has no {absent[0]!r}: {nearest(absent[0], row, 'its keys are')} Write null for a missing value."
        report(DataFinding("error", "missing key", text, path, line))
        return None
    return row


def _parsed(text: str) -> dict[str, Any] | None:
    """The JSON object, or None if it is not one."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _parquet(path: Path, d: Description, columns: Sequence[str], report: Report) -> Iterator[RowBlock]:
    file = _arrow_file(path)
    at = 1
    for batch in file.iter_batches(ROWS, columns=list(columns)):
        found = {name: _from_arrow(batch.column(name)) for name in columns}
        if batch.num_rows:
            yield RowBlock(path, at, found)
        at += batch.num_rows


def _arrow_file(path: Path) -> Any:
    try:
        import pyarrow.parquet as parquet  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise DataError(f"{path} is Parquet, which needs pyarrow: pip install 'headwise[tables]'.") from None
    try:
        return parquet.ParquetFile(path, memory_map=True)
    except (OSError, ValueError) as error:  # pyarrow's own errors derive from these
        raise DataError(f"{path} can't be read as Parquet: {' '.join(str(error).split())[:200]}.") from None


def _from_arrow(column: Any) -> NDArray[Any]:
    """Numbers unchanged, with NaN for null; anything else as objects."""
    import pyarrow as pa  # pyright: ignore[reportMissingImports]

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        return column.to_numpy(zero_copy_only=False)
    if pa.types.is_temporal(column.type):
        return _objects([None if v is None else str(v) for v in column.to_pylist()])
    return _objects(column.to_pylist())


def _objects(values: list[Any]) -> NDArray[Any]:
    """An object array; unlike `np.array`, it keeps lists as elements."""
    return np.fromiter(values, dtype=object, count=len(values))


def _has_columns(path: Path, wanted: Sequence[str], there: Sequence[str], report: Report) -> bool:
    missing = [name for name in wanted if name not in there]
    twice = [name for name in wanted if list(there).count(name) > 1]
    for name in missing:
        text = f"it has no column {name!r}: {nearest(name, there, COLUMNS)}"
        report(DataFinding("error", "missing column", text, path))
    for name in twice:
        report(DataFinding("error", "column twice", f"it has several columns called {name!r}.", path))
    return not missing and not twice
