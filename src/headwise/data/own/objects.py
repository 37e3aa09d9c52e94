"""Writes Python objects to files: arrays, tensors, DataFrames, torch and Hugging Face data sets, partitioners.

    store({"va": (x, y), "cleveland": (x, y)}, folder)                       arrays or tensors
    store({"va": (train, test), ...}, folder)                               each (x, y), a torch Dataset or a DataFrame
    store(frame, folder, client="hospital", target="ill")                   one DataFrame or Hugging Face Dataset
    store(partitioner, folder, target="label")                              of flwr-datasets
    store("patients/data.toml", folder)                                     too large to copy: a reference with its hash

Each call returns the path of a data.toml. Objects are recognized by duck typing; none of their packages is imported.
"""

from __future__ import annotations

import logging
import math
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...disk.files import digest, new_folder, write_bytes, write_json
from ...disk.jsontext import to_json, to_toml
from ...errors import ConfigError, DataError, nearest, pluralize
from ...settings.fields import build
from ...tasks.registry import kind_of
from ..dataset import LabelType
from ..federated import FederatedData
from .description import PARTS, Description, OwnSplit, Preprocess, complete_split, read_description, to_text
from .findings import ROWS, PassedTable, list_rows
from .guess import Guess, guess_description
from .layout import fingerprint
from .raw import REFERENCES, input_type, locate_array
from .tables import COLUMNS

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
    weight: NDArray[np.float64] | None = None
    """of each sample in the loss of training"""


class Joined:
    """A table of features and its targets as one table, whose last columns are the targets."""

    def __init__(self, x: Any, y: Any, targets: Sequence[str]) -> None:
        self._x = x
        names = {str(name): name for name in _names_of(x) or []}
        y = _split_targets(y, targets)
        self.targets = tuple(name if targets else _find_free_name(name, [*names]) for name in y)
        if taken := [name for name in self.targets if name in names]:
            raise DataError(f"target is {taken[0]!r}, which is a column of x already: choose another name.")
        self.columns = [*_columns_of(x), *self.targets]
        self._own = dict(zip(self.targets, y.values(), strict=True))
        self._names = names

    def __getitem__(self, name: str) -> Any:
        return self._own[name] if name in self._own else self._x[self._names[name]]

    def __len__(self) -> int:
        return len(self._x)

    @property
    def dtypes(self) -> dict[str, Any]:
        return {str(name): kind for name, kind in _dtypes_of(self._x).items()}


def _split_targets(y: Any, targets: Sequence[str]) -> dict[str, Any]:
    """The columns of y: a table's, a matrix's (a single one is the target itself), or y itself."""
    if _is_frame(y):
        columns = {str(name): y[name] for name in _names_of(y) or []}
    elif len(shape := getattr(y, "shape", ())) == 2:
        columns = {"target" if shape[1] == 1 else f"target {k}": y[:, k] for k in range(shape[1])}
    else:
        columns = {str(name) if (name := getattr(y, "name", None)) is not None else "target": y}
    if targets and len(targets) != len(columns):
        raise DataError(f"target names {len(targets)} columns, but y has {len(columns)}.")
    return dict(zip(targets or columns, columns.values(), strict=True))


def store(
    clients: Any,
    folder: Path,
    *,
    client: Any = "",
    target: Any = (),
    copy_gb: float = COPY_GB,
    sample_weight: Any = None,
    **settings: Any,
) -> Path:
    """Write `clients` below `folder`, named by a hash of the content; `settings` are keys of a data.toml."""
    if isinstance(clients, str | Path):
        if sample_weight is not None and not isinstance(sample_weight, str):
            raise DataError("sample_weight is given, but clients is a path: sample_weight must name a column.")
        return _store_reference(
            Path(clients), folder, {**settings, **({"weight": sample_weight} if sample_weight else {})}
        )
    targets = tuple(map(str, target if isinstance(target, list | tuple) else [target] if target != "" else []))
    client = str(client)
    if _is_frame(clients):
        if not client or not targets:
            raise DataError("clients is one table: client and target must name its columns.")
        pieces = [StoredPiece("", -1, clients)]
    else:
        pieces = list(_make_pieces(clients, targets))
    pieces = _with_weights(pieces, sample_weight)
    tables = [_is_frame(p.x) for p in pieces]
    if any(tables) and not all(tables):
        raise DataError("clients has both tables and arrays: use one kind for all clients.")
    folder.mkdir(parents=True, exist_ok=True)
    if "split" in settings and any(p.part >= 0 for p in pieces):
        raise DataError("split is given, but clients have training and test samples already: give only one of them.")
    with tempfile.TemporaryDirectory(prefix=".storing-", dir=folder) as name:
        draft = Path(name) / "draft"
        draft.mkdir()
        if all(tables):
            weight = sample_weight if isinstance(sample_weight, str) else ""
            guess = write_tables(pieces, draft, client, targets, copy_gb, weight)
            d = guess.description
            for column, why in guess.left_out.items() if "features" not in settings else ():
                logging.getLogger("headwise").warning("column %r is left out: %s", column, why)
        else:
            d = write_arrays(pieces, draft, copy_gb)
        d = replace(d, **_build_settings(settings))
        d = replace(d, sha256=fingerprint(d))
        text = to_text(d, "." if d.format == "arrays" else Path(d.path).name)
        (draft / "data.toml").write_text(text, "utf-8")
        _check_description(draft / "data.toml")
        home = folder / f"data-{digest(text.encode())[:16]}"
        if not home.exists():  # same content and settings, same name
            draft.rename(home)  # atomic: a folder of this name is always complete
    return home / "data.toml"


def _check_description(path: Path) -> None:
    """Refuse invalid settings before anything is written; the draft's path would mean nothing to a user."""
    try:
        read_description(path)
    except ConfigError as error:
        raise ConfigError(str(error).removeprefix(f"{path}: ")) from None


def _build_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings, converted and checked like those in a data.toml."""
    given = {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}
    if "split" in given:
        given["split"] = complete_split(given["split"])
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


def _with_weights(pieces: list[StoredPiece], given: Any) -> list[StoredPiece]:
    """The pieces with the weights of their samples: one array for one table, or one per client; never for test."""
    if given is None or isinstance(given, str):
        if given and any(not _is_frame(p.x) for p in pieces):
            raise DataError(f"sample_weight is {given!r}, but clients has arrays without columns: give numbers.")
        return pieces
    whole = len(pieces) == 1 and not pieces[0].client
    if not whole and not isinstance(given, Mapping):
        raise DataError("sample_weight must map each client's name to the weights of its training samples.")
    by_name = {"": given} if whole else {str(name): weights for name, weights in given.items()}
    names = list(dict.fromkeys(p.client for p in pieces))
    for name in (*by_name, *names):
        if name not in by_name or name not in names:
            fault = f"no weights for client {name!r}" if name in names else f"client {name!r}, which clients does not"
            raise DataError(f"sample_weight has {fault}.")
    weighted: list[StoredPiece] = []
    for p in pieces:
        weights = np.ones(len(p.x)) if p.part > 0 else _to_array(by_name[p.client])
        if weights.shape != (len(p.x),) or weights.dtype.kind not in "biuf":
            whose = f" of client {p.client!r}" if p.client else ""
            need = f"a number for each of the {len(p.x)}{' training' * (p.part == 0)} samples"
            raise DataError(f"sample_weight{whose} has the shape {list(weights.shape)}, but needs {need}.")
        weighted.append(replace(p, weight=weights.astype(np.float64)))
    return weighted


def _make_pieces(clients: Any, targets: Sequence[str]) -> Iterator[StoredPiece]:
    by_name = clients if isinstance(clients, Mapping) else _load_partitions(clients)
    if by_name is None:
        kinds = "a mapping of names to (x, y), a DataFrame with a client column, a partitioner"
        raise DataError(f"clients is a {type(clients).__name__}, but must be {kinds}, or the path of a data.toml.")
    if not by_name:
        raise DataError("clients is empty, but needs at least one client.")
    names = [str(name) for name in by_name]
    if len(set(names)) < len(names) or not all(names):
        raise DataError("clients has a duplicate or empty name.")
    for name, value in zip(names, by_name.values(), strict=True):
        for part, each in _divide_parts(name, value, targets):
            yield _make_piece(name, part, each, targets)


def _divide_parts(name: str, value: Any, targets: Sequence[str]) -> list[tuple[int, Any]]:
    """One part for (x, y), several for (train, test), (train, val, test) and {"train": ..., "test": ...}."""
    if isinstance(value, Mapping) and value and value.keys() <= PART_OF.keys():
        return [(PART_OF[k], v) for k, v in sorted(value.items(), key=lambda item: PART_OF[item[0]])]
    if not isinstance(value, tuple | list):
        return [(-1, value)]
    whole = [isinstance(v, tuple) or (_is_frame(v) and bool(targets)) or _is_dataset(v) for v in value]
    if len(value) == 2 and not whole[1] and (not whole[0] or _is_frame(value[0])):
        return [(-1, tuple(value))]
    if len(value) in (2, 3) and all(whole):
        return list(zip((0, 2) if len(value) == 2 else (0, 1, 2), value, strict=True))
    raise DataError(f"client {name!r} has {len(value)} items, but needs (x, y), (train, test) or (train, val, test).")


def _is_dataset(value: Any) -> bool:
    """Whether it yields samples by index, and is not an array, table or list."""
    known = (
        isinstance(value, list | tuple | str | Mapping) or _is_frame(value) or getattr(value, "shape", None) is not None
    )
    return not known and callable(getattr(value, "__getitem__", None)) and callable(getattr(value, "__len__", None))


def _make_piece(name: str, part: int, value: Any, targets: Sequence[str]) -> StoredPiece:
    if _is_frame(value):
        if not targets:
            raise DataError(f"client {name!r} has a table: target must name the column to predict.")
        return StoredPiece(name, part, value)
    if _is_dataset(value):
        if not len(value):
            raise DataError(f"client {name!r} has no samples{_name_part(part)}.")
        value = _samples_of(name, value)
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise DataError(f"client {name!r} has a {type(value).__name__}{_name_part(part)}, but needs (x, y).")
    if _is_frame(value[0]):
        return StoredPiece(name, part, Joined(value[0], value[1], targets))
    return StoredPiece(name, part, *_check_pair(name, part, *value))


def _check_pair(name: str, part: int, x: Any, y: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """x and y as arrays with one row per sample."""
    x = _to_array(x)
    y = _to_array(y)
    if x.ndim < 2 or x.dtype.kind not in "biuf":
        raise DataError(f"client {name!r} has x of type {x.dtype} and shape {list(x.shape)}, but needs [samples, ...].")
    if y.ndim < 1 or len(x) != len(y):
        targets = pluralize(len(y), "target") if y.ndim else "no targets"
        raise DataError(f"client {name!r} has {pluralize(len(x), 'sample')}{_name_part(part)}, but {targets}.")
    if not len(x) and part <= 0:
        raise DataError(f"client {name!r} has no samples{_name_part(part)}.")
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    for what, values in (("x", x), ("y", y)):
        if rows := _find_not_finite(values):
            hint = ": fill them, or pass a DataFrame, whose gaps are filled" if what == "x" else ""
            where = list_rows(rows, "sample")
            raise DataError(f"client {name!r} has values in {what} that are missing or infinite, in {where}{hint}.")
    if y.dtype.kind not in "biufUSMO":
        raise DataError(f"client {name!r} has y of type {y.dtype}, but needs numbers, texts or dates.")
    return x, _to_plain_targets(y) if y.dtype.kind == "O" else y


def _to_plain_targets(y: NDArray[Any]) -> NDArray[Any]:
    """Python objects as an array of their type: bools, numbers, dates or texts."""
    if y.ndim == 1 and all(isinstance(cell, date | np.datetime64) for cell in y):
        return y.astype("datetime64[us]")
    if y.ndim == 1 and all(isinstance(cell, bool | np.bool_) for cell in y):
        return y.astype(bool)
    if y.ndim == 1 and all(isinstance(cell, int | float | np.number) for cell in y):
        return np.array(y.tolist())
    return y.astype(str)


def _find_not_finite(values: NDArray[Any]) -> list[int]:
    """The rows with such a value, read in blocks: a mapped array may be larger than memory."""
    if values.dtype.kind == "O":
        return [i for i, cell in enumerate(values) if values.ndim == 1 and _to_plain(cell, None) is None]
    if values.dtype.kind == "M":
        return np.flatnonzero(np.isnat(values.reshape(len(values), -1)).any(1)).tolist()
    rows: list[int] = []
    for at in range(0, len(values) if values.dtype.kind in "fc" else 0, BLOCK):
        block = values[at : at + BLOCK]
        rows += (at + np.flatnonzero(~np.isfinite(block.reshape(len(block), -1)).all(1))).tolist()
    return rows


def _to_array(value: Any) -> NDArray[Any]:
    is_tensor = getattr(value, "detach", None) is not None
    return np.asarray(value.detach().cpu().numpy() if is_tensor else value)


def _name_part(part: int) -> str:
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
        (home / REFERENCES).write_text(to_json(_locate_arrays(pieces, copy_gb)), "utf-8")
    else:
        _copy(pieces, home / "x.npy")
    y: NDArray[Any] = np.concatenate([p.y for p in pieces])
    typed: dict[str, LabelType] = {"M": "datetime", "b": "bool"}
    label_type = typed.get(y.dtype.kind) if y.ndim == 1 else None
    np.save(home / "y.npy", np.datetime_as_string(y) if label_type == "datetime" else y, allow_pickle=False)
    np.save(home / "owner.npy", np.repeat([number[p.client] for p in pieces], [len(p.x) for p in pieces]))
    if first.weight is not None:
        np.save(home / "weight.npy", np.concatenate([p.weight for p in pieces if p.weight is not None]))
    parted = any(p.part >= 0 for p in pieces)
    if parted:
        parts = np.repeat(np.array([max(p.part, 0) for p in pieces], np.int8), [len(p.x) for p in pieces])
        np.save(home / "part.npy", parts)
    (home / "names.json").write_text(to_json(names), "utf-8")
    how = Preprocess(images="unit")
    split = OwnSplit("files" if parted else "ratio")
    return Description("arrays", str(home), split=split, preprocess=how, label_type=label_type)


def _copy(pieces: Sequence[StoredPiece], path: Path) -> None:
    first = pieces[0].x
    shape = (sum(len(p.x) for p in pieces), *first.shape[1:])
    x = np.lib.format.open_memmap(path, "w+", input_type(first.dtype), shape)
    at = 0
    for p in pieces:
        x[at : at + len(p.x)] = p.x
        at += len(p.x)
    x.flush()


def _locate_arrays(pieces: Sequence[StoredPiece], copy_gb: float) -> list[dict[str, Any]]:
    """Where these arrays lie in files."""
    places = [(p.client, locate_array(p.x)) for p in pieces]
    if in_memory := [client for client, place in places if place is None]:
        total = sum(p.x.nbytes for p in pieces) / 2**30
        size = f"clients has {total:,.3g} GB, but only copy_gb = {copy_gb:g} GB are copied"
        how = "np.save it and pass np.load(file, mmap_mode='r'), or raise copy_gb"
        raise DataError(f"{size}, and x of client {in_memory[0]!r} is not mapped from a file: {how}.")
    return [place for _, place in places if place is not None]


def write_tables(
    pieces: Sequence[StoredPiece],
    home: Path,
    client: str,
    targets: Sequence[str],
    copy_gb: float = COPY_GB,
    weight: str = "",
) -> Guess:
    """One JSONL file, which preserves numbers, strings and lists."""
    parted = any(p.part >= 0 for p in pieces)
    first = _columns_of(pieces[0].x)
    if isinstance(pieces[0].x, Joined):
        targets = pieces[0].x.targets
    named = [("target", t) for t in targets] + ([("client", client)] if not pieces[0].client else [])
    _check_columns([*named, *([("sample_weight", weight)] if weight else [])], first)
    client = client or _find_free_name("client", first)
    if pieces[0].weight is not None:
        weight = _find_free_name("weight", first)
        first = [*first, weight]
    least = sum(len(to_json(name)) + 3 for name in first) * sum(len(p.x) for p in pieces)
    _check_size(least, copy_gb)  # before cells become Python's objects
    tables: list[PassedTable] = []
    lines = 0
    size = 0
    label_types: set[LabelType | None] = set()
    with (home / "data.jsonl").open("w", encoding="utf-8") as file:
        for p in pieces:
            tables.append(PassedTable(lines + 1, p.client, PARTS[max(p.part, 0)] if parted else ""))
            columns = _cells_of(p.x, p.client)
            columns |= {} if p.weight is None else {weight: [_to_plain(w, None) for w in p.weight.tolist()]}
            label_types.add(_find_label_type(p.x, targets[0]) if len(targets) == 1 else None)
            if missing := [name for name in first if name not in columns]:
                raise DataError(f"client {p.client!r} has no column {missing[0]!r}, but {pieces[0].client!r} does.")
            n = len(next(iter(columns.values())))
            if not n and p.part <= 0:
                raise DataError(f"client {p.client!r} has no samples{_name_part(p.part)}.")
            extra = {client: p.client} if p.client else {}
            extra |= {_find_free_name("part", first): PARTS[max(p.part, 0)]} if parted else {}
            for row in zip(*(columns[name] for name in first), strict=True):
                size += file.write(to_json({**dict(zip(first, row, strict=True)), **extra}, ensure_ascii=False) + "\n")
            lines += n
            _check_size(size, copy_gb)
    write_json(home / ROWS, tables)
    kinds = _find_declared_kinds(pieces[0].x)
    guess = guess_description(home / "data.jsonl", client, targets, kinds=kinds, weight=weight)
    d = guess.description
    if parted:
        d = replace(d, split=OwnSplit("column", column=_find_free_name("part", first)))
    [label_type] = label_types if len(label_types) == 1 else [None]
    return replace(guess, description=replace(d, label_type=label_type))


def _check_columns(named: Sequence[tuple[str, str]], columns: Sequence[str]) -> None:
    for at, name in named:
        if name not in columns:
            raise ConfigError(f"{at} is {name!r}, which is not a column of clients: {nearest(name, columns, COLUMNS)}")


def _check_size(size: int, copy_gb: float) -> None:
    if size > copy_gb * 2**30:
        limit = f"clients has tables of more than copy_gb = {copy_gb:g} GB, which is the most that is copied"
        how = "write them to Parquet and pass the data.toml of headwise data init, or raise copy_gb"
        raise DataError(f"{limit}: {how}.")


def _find_free_name(name: str, taken: Sequence[str]) -> str:
    """This name, with spaces appended if it is taken."""
    return name if name not in taken else _find_free_name(f"{name} ", taken)


def _is_frame(value: Any) -> bool:
    """Whether it has named columns, like a pandas or polars DataFrame or a Hugging Face Dataset."""
    return not isinstance(value, Mapping) and _names_of(value) is not None


def _names_of(value: Any) -> list[Any] | None:
    """Column names, of any type; None if it has no columns."""
    names = getattr(value, "column_names", None)
    names = getattr(value, "columns", None) if names is None else names
    return None if names is None or callable(names) else list(names)


def _columns_of(frame: Any) -> list[str]:
    return [str(name) for name in _names_of(frame) or []]


def _find_declared_kinds(frame: Any) -> dict[str, str]:
    """The columns that a table declares to be categories: pandas and polars by dtype, Hugging Face by names."""
    kinds = {str(name): str(kind).lower() for name, kind in _dtypes_of(frame).items()}
    declared = [name for name, kind in kinds.items() if kind.startswith(("category", "categorical", "enum"))]
    return dict.fromkeys([*declared, *_labels_of(frame)], "category")


def _dtypes_of(frame: Any) -> dict[Any, Any]:
    kinds = getattr(frame, "dtypes", None)
    if kinds is None:
        return {}
    return dict(kinds) if isinstance(kinds, Mapping) else dict(zip(_names_of(frame) or [], list(kinds), strict=True))


def _find_label_type(frame: Any, name: str) -> LabelType | None:
    """The type of a column of dates or truth values, which JSON loses or pages should show."""
    original = {str(n): n for n in _names_of(frame) or []}
    cells = [cell for cell in _to_list(frame[original[name]]) if _to_plain(cell, None) is not None]
    if cells and all(isinstance(cell, date | np.datetime64) for cell in cells):
        return "datetime"
    return "bool" if cells and all(isinstance(cell, bool | np.bool_) for cell in cells) else None


def _cells_of(frame: Any, client: str) -> dict[str, list[Any]]:
    """Each column's cells as plain Python values."""
    named = _labels_of(frame)
    if twice := [name for name, n in Counter(_columns_of(frame)).items() if n > 1]:
        whose = f"client {client!r}" if client else "clients"
        raise DataError(f"{whose} has several columns called {twice[0]!r}: give each a name of its own.")
    columns = {
        str(n): [_to_plain(cell, named.get(str(n))) for cell in _to_list(frame[n])] for n in _names_of(frame) or []
    }
    for name, cells in columns.items():  # in JSON, they would become gaps
        if rows := [i for i, cell in enumerate(cells) if isinstance(cell, float) and math.isinf(cell)]:
            whose = f"client {client!r}" if client else "clients"
            raise DataError(f"{whose} has infinite numbers in column {name!r}, in {list_rows(rows, 'row')}.")
    lengths = {name: len(cells) for name, cells in columns.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"client {client!r} has columns of different lengths: {lengths}.")
    return columns


def _labels_of(frame: Any) -> dict[str, list[str]]:
    """The class names of a Hugging Face Dataset's ClassLabel columns."""
    features = getattr(frame, "features", None)
    if not isinstance(features, Mapping):
        return {}
    return {str(k): list(f.names) for k, f in features.items() if isinstance(getattr(f, "names", None), list)}


def _to_list(column: Any) -> list[Any]:
    if isinstance(column, np.ndarray) and column.dtype.kind == "M":  # `tolist` would make integers of nanoseconds
        return list(column)
    make: Any = getattr(column, "to_list", None) or getattr(column, "tolist", None)
    return list(column) if make is None else list(make())


def _to_plain(cell: Any, names: list[str] | None) -> Any:
    """A number, a string, a list, or None if the value is missing."""
    if isinstance(cell, np.datetime64):
        return None if np.isnat(cell) else str(cell)
    if callable(getattr(cell, "tolist", None)):  # of NumPy, or a tensor
        cell = cell.tolist()
    if cell is None or type(cell).__name__ in ("NAType", "NaTType") or (isinstance(cell, float) and cell != cell):
        return None
    if names is not None and isinstance(cell, int) and 0 <= cell < len(names):
        return names[cell]
    return cell if isinstance(cell, int | float | str | list) else str(cell)


def _load_partitions(value: Any) -> dict[str, Any] | None:
    """Each client's data from a flwr-datasets partitioner; None if `value` is not one."""
    take = getattr(value, "load_partition", None)
    count = getattr(value, "num_partitions", None)
    if not callable(take) or not isinstance(count, int):
        return None
    shares = [take(k) for k in range(count)]
    named: Any = getattr(value, "partition_id_to_natural_id", None) or {}  # which the partitioner knows only now
    return {str(named.get(k, k)): each for k, each in enumerate(shares)}


def _samples_of(name: str, dataset: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """All samples of a torch Dataset of (x, y) pairs."""
    pairs = [dataset[i] for i in range(len(dataset))]
    if not all(isinstance(p, tuple | list) and len(p) == 2 for p in pairs):
        raise DataError(f"client {name!r} has a {type(dataset).__name__} whose samples are not (x, y).")
    x, y = ([np.asarray(each[k]) for each in pairs] for k in (0, 1))
    shapes = sorted({a.shape for a in x})
    if len(shapes) > 1:
        raise DataError(f"client {name!r} has samples of different shapes: {list(shapes[0])} and {list(shapes[1])}.")
    return np.stack(x), np.stack(y)


def deal(data: FederatedData, model: str, out: Path) -> list[Path]:
    """Write NAME/data.toml and its arrays for every client, and the experiment.toml of a rehearsal, into a new folder.

    Samples are stored as the network takes them, in the same parts as in a simulation.
    """
    called = data.names or tuple(map(str, range(len(data))))
    names = [_folder_name(name) for name in called]
    names = [f"{name}-{c}" if names.count(name) > 1 else name for c, name in enumerate(names)]
    with new_folder(out) as draft:
        for c, name in enumerate(names):
            (draft / name).mkdir()
            _write_client(data, c, called[c], draft / name)
        settings = {"method": "fedavg", "data": "own", "model": model, "clients": len(data), "rounds": 10}
        (draft / "experiment.toml").write_text("".join(f"{k} = {to_toml(v)}\n" for k, v in settings.items()), "utf-8")
    return [out / name for name in names]


def _folder_name(name: str) -> str:
    return "".join(ch if ch.isalnum() or ch in "-_." else "_" for ch in name).strip(".") or "_"


def _write_client(data: FederatedData, c: int, name: str, home: Path) -> None:
    dataset = data.dataset
    client = data.client(c)
    parts = data.parts[c]
    samples = [(client.train, parts.train), (client.val, parts.val), (client.test, parts.test)]
    pieces = [
        StoredPiece(
            name, k, s.x.contiguous().numpy(), dataset.y[rows], None if s.weight is None else s.weight.double().numpy()
        )
        for k, (s, rows) in enumerate(samples)
        if len(rows)
    ]
    tokens = {"texts": "tokens", "buckets": dataset.vocabulary} if dataset.vocabulary else {}
    d = replace(write_arrays(pieces, home), preprocess=Preprocess(numbers="as they are", **tokens), task=dataset.task)
    if kind_of(dataset.task).one_class:
        d = replace(d, classes=tuple(map(str, range(len(dataset.classes)))), names=dataset.classes)
    elif kind_of(dataset.task).quantitative:
        d = replace(d, names=dataset.classes, target_range=dataset.target_range)
    else:
        d = replace(d, classes=dataset.classes, names=dataset.classes)
    (home / "data.toml").write_text(to_text(d, "."), "utf-8")
