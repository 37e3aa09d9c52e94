"""The files that store Python objects: plain arrays, or one JSONL table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...disk.jsontext import to_json, to_toml
from ...errors import ConfigError, DataError, nearest
from ...settings.fields import changed, dump
from .description import PARTS, Description, OwnSplit, Preprocess
from .frames import cells_of, columns_of
from .looking import Look, look
from .passed import PassedTable, write_passed
from .readers.tables import COLUMNS
from .references import REFERENCES, one_type, place_of

COPY_GB = 8.0
"""gigabytes up to which arrays are copied; larger ones stay in their files"""


@dataclass(frozen=True)
class StoredPiece:
    """Samples of one client: arrays x and y, or a table."""

    client: str
    part: int
    """0, 1, 2 for training, validation and test; -1: not given"""
    x: Any
    y: Any = None


class Joined:
    """A table of features and a column of targets as one table."""

    def __init__(self, x: Any, y: Any, targets: Sequence[str]) -> None:
        self._x, self._y, self._name = x, y, targets[0] if targets else str(getattr(y, "name", None) or "target")
        self.columns = [*columns_of(x), self._name]

    def __getitem__(self, name: str) -> Any:
        return self._y if name == self._name else self._x[name]

    def __len__(self) -> int:
        return len(self._x)


def toml_of(d: Description, path: str) -> str:
    """A data.toml with the settings that differ from their defaults."""
    usual = dump(Description(d.format, ""))
    said = {"format": d.format, **changed({**dump(d), "path": path}, usual)}
    lines = [f"{k} = {to_toml(v)}" for k, v in said.items() if not isinstance(v, Mapping)]
    for table, values in said.items():
        if isinstance(values, Mapping):
            lines += ["", f"[{table}]", *(f"{k} = {to_toml(v)}" for k, v in values.items())]
    return "\n".join(lines) + "\n"


def for_part(part: int) -> str:
    return f" for {PARTS[part]}" if part >= 0 else ""


def write_arrays(pieces: Sequence[StoredPiece], home: Path, copy_gb: float = COPY_GB) -> Description:
    """x.npy (or references), y.npy, owner.npy, part.npy and names.json."""
    first = pieces[0]
    for p in pieces:
        types = [(one_type(p.x.dtype), one_type(first.x.dtype)), (p.y.dtype, first.y.dtype)]
        for what, a, b, (mine, other) in zip(
            ("samples", "targets"), (p.x, p.y), (first.x, first.y), types, strict=True
        ):
            if a.shape[1:] != b.shape[1:] or mine.kind != other.kind:
                said = f"{what} of type {mine} and shape {list(a.shape[1:])}"
                raise DataError(f"client {p.client!r} has {said}, but {first.client!r} {other}, {list(b.shape[1:])}.")
    names = list(dict.fromkeys(p.client for p in pieces))
    number = {name: k for k, name in enumerate(names)}
    if sum(p.x.nbytes for p in pieces) > copy_gb * 2**30:
        (home / REFERENCES).write_text(to_json(_places(pieces, copy_gb)), "utf-8")
    else:
        _copy(pieces, home / "x.npy")
    np.save(home / "y.npy", np.concatenate([p.y for p in pieces]), allow_pickle=False)
    np.save(home / "owner.npy", np.repeat([number[p.client] for p in pieces], [len(p.x) for p in pieces]))
    parted = any(p.part >= 0 for p in pieces)
    if parted:
        parts = np.repeat(np.array([max(p.part, 0) for p in pieces], np.int8), [len(p.x) for p in pieces])
        np.save(home / "part.npy", parts)
    (home / "names.json").write_text(to_json(names), "utf-8")
    how = Preprocess(numbers="none", images="unit")  # unchanged, as passed
    return Description("arrays", str(home), split=OwnSplit("files" if parted else "ratio"), preprocess=how)


def _copy(pieces: Sequence[StoredPiece], path: Path) -> None:
    first = pieces[0].x
    shape = (sum(len(p.x) for p in pieces), *first.shape[1:])
    x = np.lib.format.open_memmap(path, "w+", one_type(first.dtype), shape)
    at = 0
    for p in pieces:
        x[at : at + len(p.x)] = p.x
        at += len(p.x)
    x.flush()


def _places(pieces: Sequence[StoredPiece], copy_gb: float) -> list[dict[str, Any]]:
    """Where these arrays lie in files."""
    found = [(p.client, place_of(p.x)) for p in pieces]
    if in_memory := [client for client, place in found if place is None]:
        total = sum(p.x.nbytes for p in pieces) / 2**30
        said = f"clients has {total:,.3g} GB, but only copy_gb = {copy_gb:g} GB are copied"
        how = "np.save it and pass np.load(file, mmap_mode='r'), or raise copy_gb"
        raise DataError(f"{said}, and x of client {in_memory[0]!r} is not mapped from a file: {how}.")
    return [place for _, place in found if place is not None]


def write_tables(
    pieces: Sequence[StoredPiece], home: Path, client: str, targets: Sequence[str], copy_gb: float = COPY_GB
) -> Look:
    """One JSONL file, which preserves numbers, strings and lists."""
    parted = any(p.part >= 0 for p in pieces)
    first = columns_of(pieces[0].x)
    targets = targets or first[-1:]  # only empty for `Joined`, whose target is last
    for at, name in [("target", t) for t in targets] + ([("client", client)] if not pieces[0].client else []):
        if name not in first:
            raise ConfigError(f"{at} is {name!r}, which is not a column of clients: {nearest(name, first, COLUMNS)}")
    client = client or _free("client", first)
    least = sum(len(to_json(name)) + 3 for name in first) * sum(len(p.x) for p in pieces)
    _check_size(least, copy_gb)  # before cells become Python's objects
    passed, lines, size = list[PassedTable](), 0, 0
    with (home / "data.jsonl").open("w", encoding="utf-8") as file:
        for p in pieces:
            passed.append(PassedTable(lines + 1, p.client, PARTS[max(p.part, 0)] if parted else ""))
            columns = cells_of(p.x, p.client)
            if missing := [name for name in first if name not in columns]:
                raise DataError(f"client {p.client!r} has no column {missing[0]!r}, but {pieces[0].client!r} does.")
            n = len(next(iter(columns.values())))
            if not n and p.part <= 0:
                raise DataError(f"client {p.client!r} has no samples{for_part(p.part)}.")
            extra = {client: p.client} if p.client else {}
            extra |= {_free("part", first): PARTS[max(p.part, 0)]} if parted else {}
            for row in zip(*(columns[name] for name in first), strict=True):
                size += file.write(to_json({**dict(zip(first, row, strict=True)), **extra}, ensure_ascii=False) + "\n")
            lines += n
            _check_size(size, copy_gb)
    write_passed(passed, home)
    found = look(home / "data.jsonl", client, targets)
    split = OwnSplit("column", column=_free("part", first))
    return replace(found, description=replace(found.description, split=split)) if parted else found


def _check_size(size: int, copy_gb: float) -> None:
    if size > copy_gb * 2**30:
        said = f"clients has tables of more than copy_gb = {copy_gb:g} GB, which is the most that is copied"
        raise DataError(
            f"{said}: write them to Parquet and pass the data.toml of headwise data init, or raise copy_gb."
        )


def _free(name: str, taken: Sequence[str]) -> str:
    """This name, with spaces appended if it is taken."""
    return name if name not in taken else _free(f"{name} ", taken)
