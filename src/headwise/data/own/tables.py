"""Reads tables in blocks of rows, and encodes them as numbers: CSV and JSONL with the standard library, Parquet with
pyarrow.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ...disk.jsontext import to_json
from ...errors import DataError, explain_missing, nearest, shorten
from .description import Description
from .findings import DataFinding, Report
from .images import Pictures
from .layout import list_pieces
from .raw import Builder, Form, Raw
from .values import BAG, Codes, Hashing, to_numbers

ROWS = 65_536
"""rows per block, at most"""
CELLS = 1 << 23
"""cells per block, at most"""
LINE = 1 << 26
"""characters per line of a CSV or JSONL file, at most"""
LARGEST_TEXT = 1 << 38
"""characters of a CSV or JSONL file, unpacked, at most"""
BLOCK = 1 << 26
"""characters per block of a JSONL file, about"""
COMMA = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d+),\d+([eE][+-]?\d+)?")
"""a number with a decimal comma"""
NESTED = (list, dict, tuple, set, bytes)
COLUMNS = "its columns are"


@dataclass(frozen=True)
class RowBlock:
    """Rows of one file, column by column: numbers, or objects (strings, lists, None)."""

    file: Path
    lines: NDArray[np.int64]
    """the number of each row, as an editor or a spreadsheet counts"""
    columns: dict[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.lines)


def read_blocks(path: Path, d: Description, columns: Sequence[str], report: Report) -> Iterator[RowBlock]:
    """A table's rows with these columns; unreadable rows are reported and left out."""
    reader = {"csv": _read_csv, "jsonl": _read_jsonl, "parquet": _read_parquet}[d.format]
    try:
        if d.format == "jsonl" or _has_columns(path, columns, columns_of(path, d), report):
            yield from reader(path, d, columns, report)
    except (OSError, EOFError, zlib.error) as error:  # the last two of packed files
        reason = getattr(error, "strerror", None) or error
        report(DataFinding("error", "unreadable file", f"it can't be read: {reason}.", path))
    except UnicodeDecodeError as error:
        report(DataFinding("error", "unreadable file", f"it is not UTF-8 text: byte {error.start} is invalid.", path))
    except csv.Error as error:
        report(DataFinding("error", "unreadable file", f"it is not valid CSV: {error}.", path))


def lines_of(file: IO[str], path: Path) -> Iterator[str]:
    """The lines of a text file; one that is too long for a row of a table is refused before it is read whole."""
    size = 0
    while line := file.readline(LINE + 1):
        size += len(line)
        if len(line) > LINE:
            raise DataError(f"{path} has a line of more than {LINE:,} characters.")
        if size > LARGEST_TEXT:
            raise DataError(f"{path} has more than {LARGEST_TEXT:,} characters: write it as Parquet, or divide it.")
        yield line


def open_text(path: Path) -> IO[str]:
    """A text file in UTF-8, unpacked if its name ends in .gz."""
    opener = gzip.open if path.suffix.lower() == ".gz" else open
    return opener(path, "rt", encoding="utf-8-sig", newline="")  # pyright: ignore[reportReturnType]


def columns_of(path: Path, d: Description) -> list[str]:
    """The names of a table's columns; for JSONL, the keys of the first row."""
    if d.format == "parquet":
        return list(_open_parquet(path).schema_arrow.names)
    with open_text(path) as file:
        if d.format == "csv":
            return list(d.header) or next(csv.reader(lines_of(file, path), delimiter=d.delimiter), [])
        row = _parse_object(next((line for line in lines_of(file, path) if line.strip()), ""))
        return list(row or {})


def _read_csv(path: Path, d: Description, columns: Sequence[str], report: Report) -> Iterator[RowBlock]:
    with open_text(path) as file:
        reader = csv.reader(lines_of(file, path), delimiter=d.delimiter)
        head = list(d.header) or next(reader, [])
        place = {name: i for i, name in enumerate(head)}
        while chunk := [(reader.line_num, row) for row in islice(reader, _rows_per_block(len(head)))]:
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
                if d.decimal == ",":
                    kept = [[with_point(cell) for cell in row] for row in kept]
                cells = np.array(kept, dtype=object)
                by_name = {name: cells[:, place[name]] for name in columns}
                yield RowBlock(path, np.array(lines, np.int64), by_name)


def _read_jsonl(path: Path, d: Description, columns: Sequence[str], report: Report) -> Iterator[RowBlock]:
    with open_text(path) as file:
        numbered = enumerate(lines_of(file, path), start=1)
        while chunk := _take(numbered, _rows_per_block(len(columns))):
            kept: list[dict[str, Any]] = []
            lines: list[int] = []
            for line, text in chunk:
                if text.strip() and (row := _check_object(path, line, text, columns, report)) is not None:
                    kept.append(row)
                    lines.append(line)
            if kept:
                by_name = {name: _to_objects([row.get(name) for row in kept]) for name in columns}
                yield RowBlock(path, np.array(lines, np.int64), by_name)


def with_point(cell: str) -> str:
    """A number with a decimal comma, such as 1.234,5, as Python writes it; other cells unchanged."""
    return cell.replace(".", "").replace(",", ".") if COMMA.fullmatch(cell.strip()) else cell


def _rows_per_block(columns: int) -> int:
    return max(1, min(ROWS, CELLS // max(columns, 1)))


def _take(numbered: Iterator[tuple[int, str]], rows: int) -> list[tuple[int, str]]:
    """The next lines with their numbers: at most `rows`, and about `BLOCK` characters."""
    chunk: list[tuple[int, str]] = []
    size = 0
    for line, text in islice(numbered, rows):
        chunk.append((line, text))
        size += len(text)
        if size > BLOCK:
            break
    return chunk


def _check_object(path: Path, line: int, text: str, columns: Sequence[str], report: Report) -> dict[str, Any] | None:
    row = _parse_object(text)
    if row is None:
        report(DataFinding("error", "not a JSON object", "it is not a JSON object.", path, line))
        return None
    if absent := [name for name in columns if name not in row]:
        text = f"it has no {absent[0]!r}: {nearest(absent[0], row, 'its keys are')} Write null for a missing value."
        report(DataFinding("error", "missing key", text, path, line))
        return None
    return row


def _parse_object(text: str) -> dict[str, Any] | None:
    """The JSON object, or None if it is not one, or has strings that are not Unicode text."""
    try:
        row = json.loads(text)
        if "\\u" in text:  # half a surrogate pair can't be written again
            to_json(row, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _read_parquet(path: Path, d: Description, columns: Sequence[str], report: Report) -> Iterator[RowBlock]:
    file = _open_parquet(path)
    at = 1
    try:
        for batch in file.iter_batches(_rows_per_block(len(columns)), columns=list(columns)):
            if batch.num_rows:
                cells = {name: _from_arrow(batch.column(name)) for name in columns}
                yield RowBlock(path, np.arange(at, at + batch.num_rows), cells)
            at += batch.num_rows
    except (ValueError, NotImplementedError, MemoryError) as error:  # pyarrow's own errors derive from these
        raise DataError(f"{path} can't be read as Parquet: {shorten(error)}.") from None


def _open_parquet(path: Path) -> Any:
    with explain_missing(f"{path} is Parquet, which needs pyarrow: pip install 'headwise[tables]'.", DataError):
        import pyarrow.parquet as parquet  # pyright: ignore[reportMissingImports]
    try:
        return parquet.ParquetFile(path, memory_map=True)
    except (OSError, ValueError) as error:  # pyarrow's own errors derive from these
        raise DataError(f"{path} can't be read as Parquet: {shorten(error)}.") from None


def list_dictionaries(path: Path) -> list[str]:
    """The columns of a Parquet file whose type is a dictionary."""
    import pyarrow as pa  # pyright: ignore[reportMissingImports]

    return [f.name for f in _open_parquet(path).schema_arrow if pa.types.is_dictionary(f.type)]


def _from_arrow(column: Any) -> NDArray[Any]:
    """Numbers unchanged, with NaN for null; anything else as objects."""
    import pyarrow as pa  # pyright: ignore[reportMissingImports]

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        return column.to_numpy(zero_copy_only=False)
    if pa.types.is_temporal(column.type):
        return _to_objects([None if v is None else str(v) for v in column.to_pylist()])
    return _to_objects(column.to_pylist())


def _to_objects(values: list[Any]) -> NDArray[Any]:
    """An object array; unlike `np.array`, it keeps lists as elements."""
    return np.fromiter(values, dtype=object, count=len(values))


def _has_columns(path: Path, needed: Sequence[str], header: Sequence[str], report: Report) -> bool:
    counts = Counter(header)
    missing = [name for name in needed if not counts[name]]
    twice = [name for name in needed if counts[name] > 1]
    for name in missing:
        text = f"it has no column {name!r}: {nearest(name, header, COLUMNS)}"
        report(DataFinding("error", "missing column", text, path))
    for name in twice:
        report(DataFinding("error", "column twice", f"it has several columns called {name!r}.", path))
    return not missing and not twice


def read_tables(d: Description, builder: Builder) -> Raw:
    encoder = Encoder(d)
    for piece in list_pieces(d, builder.report):
        columns = [*d.features.names(), *d.target, *filter(None, (d.client, d.split.column, d.weight))]
        before = builder.n
        for block in read_blocks(piece.path, d, list(dict.fromkeys(columns)), builder.report):
            _add_block(d, builder, encoder, block, piece.client, piece.part)
        if builder.n == before and piece.client is not None:
            text = "it has no rows that can be read."
            builder.report(DataFinding("error", "empty client", text, piece.path, client=piece.client))
    return builder.build(encoder.form, {name: codes.list_values() for name, codes in encoder.codes.items()})


def _add_block(
    d: Description, builder: Builder, encoder: Encoder, block: RowBlock, client: str | None, part: int
) -> None:
    if client:
        owner = np.full(len(block), builder.clients[client])
    else:
        cells = block.columns[d.client]
        if (nested := _are_nested(cells, lists=False)).any():
            cells = cells.copy()
            cells[nested] = None
        owner = builder.clients.of(cells)
    if (dropped := _report_unusable(d, block, owner, builder.report)).any():
        kept = {name: cells[~dropped] for name, cells in block.columns.items()}
        block = RowBlock(block.file, block.lines[~dropped], kept)
        owner = owner[~dropped]
    x = encoder.encode(block, builder.report) if len(block) else None
    if x is None:
        return
    labels = [codes.of(block.columns[name]) for codes, name in zip(builder.labels, d.target, strict=True)]
    parts = None
    time = None
    if d.split.by == "files":
        parts = np.full(len(block), part, np.int8)
    elif d.split.by == "column":
        parts = _read_parts(d, block, builder.report)
    elif d.split.by == "time":
        time = block.columns[d.split.column]
    weight = encoder.encode_numbers(block, d.weight, builder.report) if d.weight else None
    builder.add(block.file, block.lines, x, owner, labels=labels, part=parts, time=time, weight=weight)


def _report_unusable(d: Description, block: RowBlock, owner: NDArray[np.int64], report: Report) -> NDArray[np.bool_]:
    """Report rows without a client, and lists or objects where a single value is needed."""
    dropped = owner < 0
    for i in np.flatnonzero(dropped):
        state = "is a list or an object" if isinstance(block.columns[d.client][i], NESTED) else "is empty"
        text = f"the cell {state}, so the row belongs to no client."
        report(DataFinding("error", "missing client", text, block.file, int(block.lines[i]), d.client))
    for name, cells in block.columns.items():
        nested = _are_nested(cells, lists=name in d.target) & (owner >= 0)
        for i in np.flatnonzero(nested):
            kind = type(cells[i]).__name__
            text = f"the cell is a {kind}, but must be a number or a text{' or a list of them' * (name in d.target)}."
            report(DataFinding("error", "nested cell", text, block.file, int(block.lines[i]), name))
        dropped |= nested
    return dropped


def _are_nested(cells: NDArray[Any], *, lists: bool) -> NDArray[np.bool_]:
    """Which cells are lists, objects or bytes; `lists`: a list of plain values is allowed."""
    if cells.dtype.kind != "O":
        return np.zeros(len(cells), bool)
    return np.array([isinstance(c, NESTED) and not (lists and _is_flat(c)) for c in cells.tolist()], bool)


def _is_flat(cell: Any) -> bool:
    return isinstance(cell, list) and not any(isinstance(c, NESTED) for c in cell)


def _read_parts(d: Description, block: RowBlock, report: Report) -> NDArray[np.int8]:
    """The part of each row, from the split column."""
    known = d.split.part_of
    cells = [str(c).strip() for c in block.columns[d.split.column].tolist()]
    for i, cell in enumerate(cells):
        if cell not in known:
            text = f"{cell!r} is not a part: use one of {', '.join(known)}."
            report(DataFinding("error", "unknown part", text, block.file, int(block.lines[i]), d.split.column))
    return np.array([known.get(cell, 0) for cell in cells], np.int8)


class Encoder:
    """Encodes a block's columns as one array of numbers."""

    def __init__(self, d: Description) -> None:
        f = d.features
        p = d.preprocess
        self._d = d
        self.codes = {name: Codes(d.missing) for name in f.category}
        only_text = len(f.text) == 1 and len(f.names()) == 1
        tokens = p.texts == "tokens"
        if tokens and f.text and not only_text:
            raise DataError("preprocess.texts is 'tokens', which needs a text as the only feature: choose 'bag'.")
        self.form: Form = "image" if f.image else "tokens" if tokens and f.text else "table"
        self._hashing = Hashing(p.buckets if self.form == "tokens" else min(p.buckets, BAG))
        self._pictures = Pictures(p.size, p.channels)

    def encode(self, block: RowBlock, report: Report) -> NDArray[Any] | None:
        """[n, ...] numbers; None if an image can't be read."""
        f = self._d.features
        if self.form == "image":
            paths = [block.file.parent / str(cell) for cell in block.columns[f.image[0]]]
            read = [self._pictures.read(path, report) for path in paths]
            return None if any(x is None for x in read) else np.stack([x for x in read if x is not None])
        if self.form == "tokens":
            return self._encode_texts(block, f.text[0])
        parts = [
            *(self.encode_numbers(block, name, report)[:, None] for name in f.number),
            *(_mark_gaps(self.codes[name].of(block.columns[name]))[:, None] for name in f.category),
            *(self._encode_texts(block, name).astype(np.float64) for name in f.text),
        ]
        return np.concatenate(parts, axis=1)

    def _encode_texts(self, block: RowBlock, name: str) -> NDArray[np.int32]:
        return self._hashing.encode(block.columns[name].tolist(), self._d.preprocess.length)

    def encode_numbers(self, block: RowBlock, name: str, report: Report) -> NDArray[np.float64]:
        cells = block.columns[name]
        numbers, wrong = to_numbers(cells, self._d.missing)
        for i in wrong:
            text = f"{cells[i]!r} is not a number and not listed in missing."
            report(DataFinding("error", "not a number", text, block.file, int(block.lines[i]), name))
        for i in np.flatnonzero(np.isinf(numbers)):
            text = "it is infinite, but must be finite."
            report(DataFinding("error", "infinite number", text, block.file, int(block.lines[i]), name))
        return numbers


def _mark_gaps(codes: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.where(codes < 0, np.nan, codes)
