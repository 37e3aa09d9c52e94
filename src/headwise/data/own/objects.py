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
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...disk.files import digest, write_bytes
from ...errors import DataError, counted
from ...settings.fields import build
from .description import Description, read_description
from .frames import is_frame, partitions, samples_of
from .hashes import fingerprint
from .storing import COPY_GB, Joined, StoredPiece, for_part, toml_of, write_arrays, write_tables

BLOCK = 4096
PART_OF = {"train": 0, "val": 1, "validation": 1, "test": 2}
"""the keys of a Hugging Face DatasetDict"""


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
        return _named(Path(clients), folder, settings)
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
            found = write_tables(pieces, draft, client, targets, copy_gb)
            d = found.description
            for column, why in found.left_out.items() if "features" not in settings else ():
                logging.getLogger("headwise").warning("column %r is left out: %s", column, why)
        else:
            d = write_arrays(pieces, draft, copy_gb)
        d = replace(d, **_checked(settings))
        d = replace(d, sha256=fingerprint(d))
        text = toml_of(d, "." if d.format == "arrays" else Path(d.path).name)
        (draft / "data.toml").write_text(text, "utf-8")
        read_description(draft / "data.toml")  # refuse invalid settings before anything is written
        home = folder / f"data-{digest(text.encode())[:16]}"
        if not home.exists():  # same content and settings, same name
            draft.rename(home)  # atomic: a folder of this name is always complete
    return home / "data.toml"


def _checked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings, converted and checked like those in a data.toml."""
    given = {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}
    built = build(Description, {"format": "arrays", "path": ".", **given})
    return {k: getattr(built, k) for k in given}


def _named(path: Path, folder: Path, settings: Mapping[str, Any]) -> Path:
    """A copy of an existing data.toml with an absolute path and the hash of its files."""
    d = replace(read_description(path), **_checked(settings))
    d = replace(d, sha256=fingerprint(d))
    folder.mkdir(parents=True, exist_ok=True)
    text = toml_of(d, os.path.abspath(d.path))
    home = folder / f"data-{digest(text.encode())[:16]}.toml"
    write_bytes(home, text.encode())
    return home


def _pieces(clients: Any, targets: Sequence[str]) -> Iterator[StoredPiece]:
    found = clients if isinstance(clients, Mapping) else partitions(clients)
    if found is None:
        kinds = (
            "a mapping of names to (x, y), a DataFrame with a client column, a partitioner, or the path of a data.toml"
        )
        raise DataError(f"clients is a {type(clients).__name__}, but must be {kinds}.")
    if not found:
        raise DataError("clients is empty, but needs at least one client.")
    names = [str(name) for name in found]
    if len(set(names)) < len(names) or not all(names):
        raise DataError("clients has a duplicate or empty name.")
    for name, value in zip(names, found.values(), strict=True):
        parts = _parts(name, value, targets)
        for part, each in parts:
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
    x, y = _array(x), _array(y)
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
