"""Writes Python objects to files: arrays, tensors, DataFrames, torch and Hugging Face data sets, partitioners.

    store({"va": (x, y), "cleveland": (x, y)}, folder)                       arrays or tensors
    store({"va": (train, test), ...}, folder)                               each (x, y), a torch Dataset or a DataFrame
    store(frame, folder, client="hospital", target="ill")                   one DataFrame or Hugging Face Dataset
    store(partitioner, folder, target="label")                              of flwr-datasets
    store("patients/data.toml", folder)                                     too large to copy: a reference with its hash

Each call returns the path of a data.toml. Objects are recognised by duck typing; none of their packages is imported.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...disk.files import digest, write_bytes
from ...disk.jsontext import to_json
from ...errors import ConfigError, DataError, counted, nearest
from ...settings.fields import build
from .description import PARTS, Description, OwnSplit, Preprocess, read_description, to_text
from .findings import PassedTable, write_passed
from .guess import Guess, guess_description
from .layout import fingerprint
from .readers.large import REFERENCES, input_type, reference
from .readers.tables import COLUMNS

COPY_GB = 8.0
"""gigabytes up to which arrays are copied; larger ones stay in their files"""
BLOCK = 4096
PART_OF = {"train": 0, "val": 1, "validation": 1, "test": 2}
"""the keys of a Hugging Face DatasetDict"""


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
        self._x = x
        self._y = y
        self._name = targets[0] if targets else str(getattr(y, "name", None) or "target")
        self.columns = [*columns_of(x), self._name]

    def __getitem__(self, name: str) -> Any:
        return self._y if name == self._name else self._x[name]

    def __len__(self) -> int:
        return len(self._x)


def store(
    clients: Any,
    folder: Path,
    *,
    client: str = "",
    target: str | Sequence[str] = (),
    copy_gb: float = COPY_GB,
    **settings: Any,
) -> Path:
    """Write `clients` below `folder`, named by a hash of the content; `settings` are keys of a data.toml."""
    if isinstance(clients, str | Path):
        return _store_reference(Path(clients), folder, settings)
    targets = (target,) if isinstance(target, str) and target else tuple(target)
    if is_frame(clients):
        if not client or not targets:
            raise DataError("clients is one table: client and target must name its columns.")
        pieces = [StoredPiece("", -1, clients)]
    else:
        pieces = list(_pieces(clients, targets))
    tables = [is_frame(p.x) for p in pieces]
    if any(tables) and not all(tables):
        raise DataError("clients has both tables and arrays: use one kind for all clients.")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".storing-", dir=folder) as name:
        draft = Path(name) / "draft"
        draft.mkdir()
        if all(tables):
            guess = write_tables(pieces, draft, client, targets, copy_gb)
            d = guess.description
            for column, why in guess.left_out.items() if "features" not in settings else ():
                logging.getLogger("headwise").warning("column %r is left out: %s", column, why)
        else:
            d = write_arrays(pieces, draft, copy_gb)
        d = replace(d, **_build_settings(settings))
        d = replace(d, sha256=fingerprint(d))
        text = to_text(d, "." if d.format == "arrays" else Path(d.path).name)
        (draft / "data.toml").write_text(text, "utf-8")
        read_description(draft / "data.toml")  # refuse invalid settings before anything is written
        home = folder / f"data-{digest(text.encode())[:16]}"
        if not home.exists():  # same content and settings, same name
            draft.rename(home)  # atomic: a folder of this name is always complete
    return home / "data.toml"


def _build_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings, converted and checked like those in a data.toml."""
    given = {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}
    built = build(Description, {"format": "arrays", "path": ".", **given})
    return {k: getattr(built, k) for k in given}


def _store_reference(path: Path, folder: Path, settings: Mapping[str, Any]) -> Path:
    """A copy of an existing data.toml with an absolute path and the hash of its files."""
    d = replace(read_description(path), **_build_settings(settings))
    d = replace(d, sha256=fingerprint(d))
    folder.mkdir(parents=True, exist_ok=True)
    text = to_text(d, os.path.abspath(d.path))
    home = folder / f"data-{digest(text.encode())[:16]}.toml"
    write_bytes(home, text.encode())
    return home


def _pieces(clients: Any, targets: Sequence[str]) -> Iterator[StoredPiece]:
    by_name = clients if isinstance(clients, Mapping) else partitions(clients)
    if by_name is None:
        kinds = "a mapping of names to (x, y), a DataFrame with a client column, a partitioner, or a data.toml's path"
        raise DataError(f"clients is a {type(clients).__name__}, but must be {kinds}.")
    if not by_name:
        raise DataError("clients is empty, but needs at least one client.")
    names = [str(name) for name in by_name]
    if len(set(names)) < len(names) or not all(names):
        raise DataError("clients has a duplicate or empty name.")
    for name, value in zip(names, by_name.values(), strict=True):
        for part, each in _parts(name, value, targets):
            yield _piece(name, part, each, targets)


def _parts(name: str, value: Any, targets: Sequence[str]) -> list[tuple[int, Any]]:
    """One part for (x, y), several for (train, test), (train, val, test) and {"train": ..., "test": ...}."""
    if isinstance(value, Mapping) and value and value.keys() <= PART_OF.keys():
        return [(PART_OF[k], v) for k, v in sorted(value.items(), key=lambda item: PART_OF[item[0]])]
    if not isinstance(value, tuple | list):
        return [(-1, value)]
    whole = [isinstance(v, tuple) or (is_frame(v) and bool(targets)) or _is_dataset(v) for v in value]
    if len(value) == 2 and not any(whole):
        return [(-1, tuple(value))]
    if len(value) in (2, 3) and all(whole):
        return list(zip((0, 2) if len(value) == 2 else (0, 1, 2), value, strict=True))
    raise DataError(f"client {name!r} has {len(value)} items, but needs (x, y), (train, test) or (train, val, test).")


def _is_dataset(value: Any) -> bool:
    """Whether it yields samples by index, and is not an array, table or list."""
    known = (
        isinstance(value, list | tuple | str | Mapping) or is_frame(value) or getattr(value, "shape", None) is not None
    )
    return not known and callable(getattr(value, "__getitem__", None)) and callable(getattr(value, "__len__", None))


def _piece(name: str, part: int, value: Any, targets: Sequence[str]) -> StoredPiece:
    if is_frame(value):
        if not targets:
            raise DataError(f"client {name!r} has a table: target must name the column to predict.")
        return StoredPiece(name, part, value)
    if _is_dataset(value):
        if not len(value):
            raise DataError(f"client {name!r} has no samples{for_part(part)}.")
        value = samples_of(name, value)
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise DataError(f"client {name!r} has a {type(value).__name__}{for_part(part)}, but needs (x, y).")
    if is_frame(value[0]):
        return StoredPiece(name, part, Joined(value[0], value[1], targets))
    return StoredPiece(name, part, *_pair(name, part, *value))


def _pair(name: str, part: int, x: Any, y: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """x and y as arrays with one row per sample."""
    x = _array(x)
    y = _array(y)
    if x.ndim < 2 or x.dtype.kind not in "biuf":
        raise DataError(f"client {name!r} has x of type {x.dtype} and shape {list(x.shape)}, but needs [samples, ...].")
    if y.ndim < 1 or len(x) != len(y):
        targets = counted(len(y), "target") if y.ndim else "no targets"
        raise DataError(f"client {name!r} has {counted(len(x), 'sample')}{for_part(part)}, but {targets}.")
    if not len(x) and part <= 0:
        raise DataError(f"client {name!r} has no samples{for_part(part)}.")
    for what, values in (("x", x), ("y", y)):
        if (i := _not_finite(values)) is not None:
            hint = ": fill them, or pass a DataFrame, whose gaps are filled" if what == "x" else ""
            raise DataError(f"client {name!r} has values in {what} that are not finite, first in sample {i}{hint}.")
    if y.dtype.kind == "O":
        y = y.astype(str)
    return x, y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y


def _not_finite(values: NDArray[Any]) -> int | None:
    """The first row with such a value, found in blocks: a mapped array may be larger than memory."""
    for at in range(0, len(values) if values.dtype.kind == "f" else 0, BLOCK):
        block = values[at : at + BLOCK]
        if not (good := np.isfinite(block.reshape(len(block), -1)).all(1)).all():
            return at + int(good.argmin())
    return None


def _array(value: Any) -> NDArray[Any]:
    is_tensor = getattr(value, "detach", None) is not None
    return np.asarray(value.detach().cpu().numpy() if is_tensor else value)


def for_part(part: int) -> str:
    return f" for {PARTS[part]}" if part >= 0 else ""


def write_arrays(pieces: Sequence[StoredPiece], home: Path, copy_gb: float = COPY_GB) -> Description:
    """x.npy (or references), y.npy, owner.npy, part.npy and names.json."""
    first = pieces[0]
    for p in pieces:
        types = [(input_type(p.x.dtype), input_type(first.x.dtype)), (p.y.dtype, first.y.dtype)]
        for what, a, b, (mine, other) in zip(
            ("samples", "targets"), (p.x, p.y), (first.x, first.y), types, strict=True
        ):
            if a.shape[1:] != b.shape[1:] or mine.kind != other.kind:
                own = f"{what} of type {mine} and shape {list(a.shape[1:])}"
                raise DataError(f"client {p.client!r} has {own}, but {first.client!r} {other}, {list(b.shape[1:])}.")
    names = list(dict.fromkeys(p.client for p in pieces))
    number = {name: k for k, name in enumerate(names)}
    if sum(p.x.nbytes for p in pieces) > copy_gb * 2**30:
        (home / REFERENCES).write_text(to_json(_references(pieces, copy_gb)), "utf-8")
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
    x = np.lib.format.open_memmap(path, "w+", input_type(first.dtype), shape)
    at = 0
    for p in pieces:
        x[at : at + len(p.x)] = p.x
        at += len(p.x)
    x.flush()


def _references(pieces: Sequence[StoredPiece], copy_gb: float) -> list[dict[str, Any]]:
    """Where these arrays lie in files."""
    places = [(p.client, reference(p.x)) for p in pieces]
    if in_memory := [client for client, place in places if place is None]:
        total = sum(p.x.nbytes for p in pieces) / 2**30
        size = f"clients has {total:,.3g} GB, but only copy_gb = {copy_gb:g} GB are copied"
        how = "np.save it and pass np.load(file, mmap_mode='r'), or raise copy_gb"
        raise DataError(f"{size}, and x of client {in_memory[0]!r} is not mapped from a file: {how}.")
    return [place for _, place in places if place is not None]


def write_tables(
    pieces: Sequence[StoredPiece], home: Path, client: str, targets: Sequence[str], copy_gb: float = COPY_GB
) -> Guess:
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
    tables: list[PassedTable] = []
    lines = 0
    size = 0
    with (home / "data.jsonl").open("w", encoding="utf-8") as file:
        for p in pieces:
            tables.append(PassedTable(lines + 1, p.client, PARTS[max(p.part, 0)] if parted else ""))
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
    write_passed(tables, home)
    guess = guess_description(home / "data.jsonl", client, targets)
    split = OwnSplit("column", column=_free("part", first))
    return replace(guess, description=replace(guess.description, split=split)) if parted else guess


def _check_size(size: int, copy_gb: float) -> None:
    if size > copy_gb * 2**30:
        limit = f"clients has tables of more than copy_gb = {copy_gb:g} GB, which is the most that is copied"
        how = "write them to Parquet and pass the data.toml of headwise data init, or raise copy_gb"
        raise DataError(f"{limit}: {how}.")


def _free(name: str, taken: Sequence[str]) -> str:
    """This name, with spaces appended if it is taken."""
    return name if name not in taken else _free(f"{name} ", taken)


def is_frame(value: Any) -> bool:
    """Whether it has named columns, like a pandas or polars DataFrame or a Hugging Face Dataset."""
    return not isinstance(value, Mapping) and _names(value) is not None


def _names(value: Any) -> list[Any] | None:
    """Column names, of any type; None if it has no columns."""
    names = getattr(value, "column_names", None)
    names = getattr(value, "columns", None) if names is None else names
    return None if names is None or callable(names) else list(names)


def columns_of(frame: Any) -> list[str]:
    return [str(name) for name in _names(frame) or []]


def cells_of(frame: Any, client: str) -> dict[str, list[Any]]:
    """Each column's cells as plain Python values."""
    named = _labels(frame)
    columns = {str(n): [_plain(cell, named.get(str(n))) for cell in _list(frame[n])] for n in _names(frame) or []}
    lengths = {name: len(cells) for name, cells in columns.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"client {client!r} has columns of different lengths: {lengths}.")
    return columns


def _labels(frame: Any) -> dict[str, list[str]]:
    """The class names of a Hugging Face Dataset's ClassLabel columns."""
    features = getattr(frame, "features", None)
    if not isinstance(features, Mapping):
        return {}
    return {str(k): list(f.names) for k, f in features.items() if isinstance(getattr(f, "names", None), list)}


def _list(column: Any) -> list[Any]:
    make: Any = getattr(column, "to_list", None) or getattr(column, "tolist", None)
    return list(column) if make is None else list(make())


def _plain(cell: Any, names: list[str] | None) -> Any:
    """A number, a string, a list, or None if the value is missing."""
    if callable(getattr(cell, "tolist", None)):  # of NumPy, or a tensor
        cell = cell.tolist()
    if cell is None or type(cell).__name__ in ("NAType", "NaTType") or (isinstance(cell, float) and cell != cell):
        return None
    if names is not None and isinstance(cell, int) and 0 <= cell < len(names):
        return names[cell]
    if isinstance(cell, bool):
        return int(cell)
    return cell if isinstance(cell, int | float | str | list) else str(cell)


def partitions(value: Any) -> dict[str, Any] | None:
    """Each client's data from a flwr-datasets partitioner; None if `value` is not one."""
    take = getattr(value, "load_partition", None)
    count = getattr(value, "num_partitions", None)
    if not callable(take) or not isinstance(count, int):
        return None
    shares = [take(k) for k in range(count)]
    named: Any = getattr(value, "partition_id_to_natural_id", None) or {}  # known only now
    return {str(named.get(k, k)): each for k, each in enumerate(shares)}


def samples_of(name: str, dataset: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """All samples of a torch Dataset of (x, y) pairs."""
    pairs = [dataset[i] for i in range(len(dataset))]
    if not all(isinstance(p, tuple | list) and len(p) == 2 for p in pairs):
        raise DataError(f"client {name!r} has a {type(dataset).__name__} whose samples are not (x, y).")
    x, y = ([np.asarray(each[k]) for each in pairs] for k in (0, 1))
    shapes = sorted({a.shape for a in x})
    if len(shapes) > 1:
        raise DataError(f"client {name!r} has samples of different shapes: {list(shapes[0])} and {list(shapes[1])}.")
    return np.stack(x), np.stack(y)
