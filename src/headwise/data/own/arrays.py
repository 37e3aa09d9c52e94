"""Reads arrays: one NPZ file per client, or a folder of .npy files written by `store`."""

from __future__ import annotations

import json
import math
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ...disk.paths import is_text
from ...errors import DataError, pluralize, shorten
from .description import PARTS, Description
from .findings import DataFinding
from .layout import Piece, list_pieces
from .raw import REFERENCES, Builder, Form, Raw, Rows, input_type, read_references

LARGEST_NPZ = 1 << 36
"""bytes of one NPZ file, unpacked"""
LARGEST_NAMES = 1 << 28
"""bytes of the list of clients' names"""


def load_npz(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an NPZ file; pickled objects are refused, because loading them would run code."""
    arrays: dict[str, NDArray[Any]] = {}
    try:
        with zipfile.ZipFile(path) as bundle:
            if sum(info.file_size for info in bundle.infolist()) > LARGEST_NPZ:
                raise ValueError(f"it unpacks to more than {LARGEST_NPZ >> 30} GiB")
            for info in bundle.infolist():
                _check_header(bundle, info)
                with bundle.open(info) as file:
                    arrays[info.filename.removesuffix(".npy")] = np.lib.format.read_array(file, allow_pickle=False)
    except Exception as error:  # hostile bytes make numpy's parser of headers raise anything
        raise DataError(f"{path} can't be read as NPZ: {shorten(error)}.") from None
    return arrays


def _check_header(bundle: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
    """Raise a ValueError if an array's header promises more than the archive says that it has."""
    with bundle.open(info) as file:
        shape, _, dtype = read_header(file)
    if math.prod(shape) * dtype.itemsize > info.file_size:
        raise ValueError(f"{info.filename} is shorter than its header says")


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """The shape, order and type of the array that follows."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(file)


def read_npz(d: Description, builder: Builder) -> Raw:
    """x and y, or x_train, y_train, x_val, ... in one file or folder per client."""
    for piece in list_pieces(d, builder.report):
        try:
            arrays = load_npz(piece.path)
        except DataError as error:
            builder.report(DataFinding("error", "unreadable file", str(error), client=piece.client or ""))
            continue
        before = builder.n
        for part, (x, y) in _find_pairs(arrays, piece, d, builder).items():
            _add_arrays(builder, piece, x, y, part if d.split.by == "files" else -1)
        if builder.n == before:
            text = "it has no samples that can be read."
            builder.report(DataFinding("error", "empty client", text, piece.path, client=piece.client or ""))
    raw = builder.build("array", {})
    return replace(raw, form=form_of(raw.x))


def _find_pairs(
    arrays: dict[str, NDArray[Any]], piece: Piece, d: Description, builder: Builder
) -> dict[int, tuple[NDArray[Any], NDArray[Any]]]:
    names = {piece.part: ("x", "y")} if "x" in arrays else {k: (f"x_{p}", f"y_{p}") for k, p in enumerate(PARTS)}
    present = {k: pair for k, pair in names.items() if pair[0] in arrays}
    for k, (x, y) in list(present.items()):
        if y not in arrays:
            text = f"it has {x} but no {y}."
            builder.report(DataFinding("error", "missing array", text, piece.path, client=piece.client or ""))
            del present[k]
    if not present and "x" not in arrays:
        text = f"it has {', '.join(arrays) or 'nothing'}, but needs x and y, or x_train, y_train, x_test, y_test."
        builder.report(DataFinding("error", "missing array", text, piece.path, client=piece.client or ""))
    return {k: (arrays[x], arrays[y]) for k, (x, y) in present.items()}


def _find_mismatch(x: NDArray[Any], y: NDArray[Any]) -> tuple[str, str] | None:
    """Why these are not samples and their targets: the kind of problem, and a sentence."""
    for name, kinds, a in (("x", "biuf", x), ("y", "biufSU", y)):
        if a.dtype.kind not in kinds:
            allowed = "numbers" if name == "x" else "numbers or texts"
            return "wrong type", f"{name} is of type {a.dtype}, but must hold {allowed}."
    if x.ndim < 2:
        return "wrong shape", f"x has the shape {list(x.shape)}, but must have one row per sample: [samples, ...]."
    if y.ndim < 1 or len(x) != len(y):
        targets = pluralize(len(y), "target") if y.ndim else "no targets"
        return "wrong lengths", f"x has {pluralize(len(x), 'sample')}, but y has {targets}."
    return None


def _add_arrays(builder: Builder, piece: Piece, x: NDArray[Any], y: NDArray[Any], part: int) -> None:
    client = piece.client or ""
    if (mismatch := _find_mismatch(x, y)) is not None:
        builder.report(DataFinding("error", *mismatch, piece.path, client=client))
        return
    x = x.astype(input_type(x.dtype), copy=False)
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if not len(x) or not builder.has_same_shape("samples", x, piece.path, client):
        return
    if not builder.has_same_shape("targets", y if y.ndim > 1 else np.empty(0), piece.path, client):
        return
    owner = np.full(len(x), builder.clients[client])
    parts = None if part < 0 else np.full(len(x), part, np.int8)
    several = y.ndim > 1
    labels = [np.full(len(y), -1)] if several else [builder.labels[0].of(y)]
    builder.add(piece.path, np.arange(len(x)), x, owner, labels=labels, y=y if several else None, part=parts)


def form_of(x: NDArray[Any]) -> Form:
    """Images are uint8 [n, channels, height, width]; anything else is an array."""
    return "image" if x.dtype == np.uint8 and x.ndim == 4 else "array"


def map_inputs(d: Description) -> Any:
    """The samples that `store` copied or refers to; nothing is read yet."""
    large = (d.place / REFERENCES).exists()
    return read_references(d.place) if large else map_npy(d.place / "x.npy")


def read_arrays(d: Description, builder: Builder) -> Raw:
    """x.npy or references, y.npy, owner.npy, an optional part.npy, and names.json with the clients' names."""
    x = map_inputs(d)
    y, owner = (map_npy(d.place / f"{name}.npy") for name in ("y", "owner"))
    part, weight = (
        map_npy(path) if (path := d.place / f"{name}.npy").exists() else None for name in ("part", "weight")
    )
    names = _read_names(d.place / "names.json")
    _check_arrays(d.place, x, y, owner, part, len(names))
    if weight is not None and (weight.shape != (len(y),) or weight.dtype.kind not in "biuf"):
        raise DataError(f"{d.place / 'weight.npy'} must have a number for each of the {len(y)} samples.")
    for name in names:
        builder.clients[name]
    several = y.ndim > 1
    labels = (np.full(len(y), -1),) if several else (builder.labels[0].of(np.asarray(y)),)
    return Raw(
        form=form_of(x),
        x=x,
        labels=labels,
        cells=(builder.labels[0].list_values(),),
        y=np.asarray(y) if several else None,
        owner=np.asarray(owner, np.int64),
        owners=tuple(names),
        part=None if part is None else np.asarray(part, np.int8),
        rows=[Rows(0, None, None)],
        weight=None if weight is None else np.asarray(weight, np.float64),
        label_type=builder.labels[0].label_type(),
    )


def _read_names(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            names = json.loads(file.read(LARGEST_NAMES))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} can't be read: {shorten(error)}.") from None
    if not isinstance(names, list) or not all(isinstance(n, str) and is_text(n) for n in names):
        raise DataError(f"{path} must be a list of the clients' names.")
    if len(set(names)) < len(names):
        raise DataError(f"{path} has a name twice.")
    return names


def _check_arrays(home: Path, x: Any, y: NDArray[Any], owner: NDArray[Any], part: Any, clients: int) -> None:
    sizes = [a.shape[0] if a.ndim else 0 for a in (x, y, owner, *([] if part is None else [part]))]
    if len(set(sizes)) > 1:
        raise DataError(f"{home} has {sizes[0]} samples, but {sizes[1]} targets for {sizes[2]} owners.")
    if x.ndim < 2 or y.ndim < 1 or x.dtype.kind not in "biuf" or y.dtype.kind not in "biufSU":
        raise DataError(f"{home} must have numbers in x, [samples, ...], and numbers or texts in y.")
    for name, values, end in (("owner", owner, clients), ("part", part, len(PARTS))):
        if values is None:
            continue
        if values.ndim != 1 or values.dtype.kind not in "iu" or not ((values >= 0) & (values < end)).all():
            raise DataError(f"{home / name}.npy must have whole numbers from 0 to {end - 1}.")


def map_npy(path: Path) -> NDArray[Any]:
    """Mapped into memory, so that only what is used is read."""
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # hostile bytes make numpy's parser of headers raise anything
        raise DataError(f"{path} can't be read: {shorten(error)}.") from None
