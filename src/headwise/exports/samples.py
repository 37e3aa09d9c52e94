"""Samples to predict, from files as a data.toml describes them: block by block, so that memory does not grow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..data.own.description import Description, read_description
from ..data.own.findings import strictly
from ..data.own.readers.arrays import load_npz
from ..data.own.readers.layouts import SUFFIXES, Piece, image_folders, pieces
from ..data.own.readers.tables import blocks
from ..data.own.readers.values import written
from ..data.preprocessing.states import CellError
from ..errors import DataError
from ..settings.fields import build
from .model import ROWS, TrainedModel


class Batch(NamedTuple):
    """Some samples of one file."""

    names: list[Any]
    """the number of each row in its file, or the file of each image"""
    raw: Any
    """as `TrainedModel.say` takes them"""
    labels: NDArray[np.int64] | None
    """[n] the classes, where the target was asked for"""


def read(path: Path, model: TrainedModel, *, labelled: bool = False, client: str = "") -> Iterator[Batch]:
    """The samples in a table, an NPZ file, an image or a folder of images, or in what a data.toml describes."""
    d, found = _description(path, model), False
    reader = {"npz": _arrays, "arrays": _arrays, "images": _images}.get(d.format, _tables)
    for batch in reader(d, model, labelled, _files(path, d, client)):
        found = True
        yield batch
    if not found:
        raise DataError(f"{path} has no samples{f' of client {client!r}' if client else ''}.")


def _description(path: Path, model: TrainedModel) -> Description:
    reading = model.card["reading"]
    if path.suffix.lower() == ".toml":
        return read_description(path)
    known = build(Description, {**reading, "path": str(path)}) if reading else Description("npz", str(path))
    if path.is_dir():
        return replace(known, format="images")
    for format, endings in SUFFIXES.items():
        if path.suffix.lower() in endings and format != "arrays":
            return replace(known, format=format)
    endings = ", ".join(e for format, each in SUFFIXES.items() if format != "arrays" for e in each)
    raise DataError(f"{path} has no known ending: it must be a data.toml, a folder of images, or one of {endings}.")


def _files(path: Path, d: Description, client: str) -> list[Piece]:
    """The files to read; of one client, if one is named."""
    if path.suffix.lower() != ".toml":
        if client:
            raise DataError(f"{path} does not say whose samples it has: only a data.toml does.")
        return [Piece(path)]
    if d.format == "images":
        found = [Piece(folder.path, folder.client) for folder in image_folders(d, strictly)]
    else:
        found = [replace(piece, client=piece.client or client or None) for piece in pieces(d, strictly)]
    kept = [piece for piece in found if not client or piece.client == client]
    if not kept:
        raise DataError(f"{path} has no client {client!r}.")
    return kept


def _tables(d: Description, model: TrainedModel, labelled: bool, files: Sequence[Piece]) -> Iterator[Batch]:
    fitted, reading = model.inputs.fitted, model.card["reading"]
    if fitted is None:
        raise DataError(f"{d.place} is a table, but this model takes arrays: an NPZ file with x.")
    form, features = fitted.recipe.form, reading["features"]
    single = {"image": features["image"], "tokens": features["text"]}.get(form)
    columns = list(single) if single else [c.name for c in fitted.recipe.columns]
    target = [_target(d, model)] if labelled else []
    for piece in files:
        whose = [d.client] if piece.client and d.client else []
        for block in blocks(piece.path, d, [*columns, *target, *whose], strictly):
            mine = [i for i in range(len(block)) if not whose or written(block.columns[d.client][i]) == piece.client]
            for at in range(0, len(mine), ROWS):
                rows = np.array(mine[at : at + ROWS])
                cells = {name: block.columns[name][rows] for name in columns}
                numbers = [block.row(int(i)) for i in rows]
                if form == "image":
                    raw: Any = [piece.path.parent / str(c) for c in cells[columns[0]]]
                else:
                    raw = list(cells[columns[0]]) if form == "tokens" else _encoded(model, cells, piece.path, numbers)
                said = block.columns[target[0]][rows] if target else None
                labels = _labels(model, said, lambda i, p=piece.path, n=numbers: f"{p}, row {n[i]}")
                yield Batch(numbers, raw, labels)


def _encoded(model: TrainedModel, cells: dict[str, NDArray[Any]], path: Path, numbers: Sequence[Any]) -> NDArray[Any]:
    """Encoded here, where it is known which rows of the file these are."""
    try:
        return model.inputs.encode(cells)
    except CellError as error:
        raise DataError(f"{path}, row {numbers[error.row]}, {error.said}") from None


def _target(d: Description, model: TrainedModel) -> str:
    target = d.target or tuple(model.card["reading"].get("target", ()))
    if len(target) != 1:
        raise DataError(f"{d.place} has no column to compare predictions with.")
    return target[0]


def _arrays(d: Description, model: TrainedModel, labelled: bool, files: Sequence[Piece]) -> Iterator[Batch]:
    for piece in files:
        found = load_npz(piece.path)
        if "x" not in found or (labelled and "y" not in found):
            needed = "x and y" if labelled else "x"
            raise DataError(f"{piece.path} has {', '.join(found) or 'nothing'}, but must have {needed}.")
        x, y = found["x"], found.get("y") if labelled else None
        if y is not None and len(y) != len(x):
            raise DataError(f"{piece.path} has {len(x)} samples in x, but {len(y)} labels in y.")
        for at in range(0, len(x), ROWS):
            part = range(at, min(at + ROWS, len(x)))
            said = None if y is None else y[at : at + ROWS]
            labels = _labels(model, said, lambda i, p=piece.path, at=at: f"{p}, sample {at + i}")
            yield Batch(list(part), x[at : at + ROWS], labels)


def _images(d: Description, model: TrainedModel, labelled: bool, files: Sequence[Piece]) -> Iterator[Batch]:
    """A folder's images, in folders that are named by classes where labels are asked for."""
    if model.inputs.fitted is None or model.inputs.fitted.recipe.form != "image":
        raise DataError(f"{d.place} holds images, but this model was not trained on image files.")
    for piece in files:
        inside = [piece.path] if piece.path.is_file() else sorted(piece.path.rglob("*"))
        paths = [p for p in inside if p.suffix.lower() in SUFFIXES["images"]]
        if not paths:
            raise DataError(f"{piece.path} has no images.")
        for at in range(0, len(paths), ROWS // 16):
            part = paths[at : at + ROWS // 16]
            said = np.array([p.parent.name for p in part], dtype=object) if labelled else None
            yield Batch([str(p) for p in part], part, _labels(model, said, lambda i, p=part: str(p[i])))


def _labels(model: TrainedModel, cells: NDArray[Any] | None, where: Callable[[int], str]) -> NDArray[np.int64] | None:
    """The number of each class; public data sets number them, and a user's own files write them."""
    if cells is None:
        return None
    reading = model.card["reading"]
    known = list(reading.get("classes") or model.classes) if reading else [str(k) for k in range(len(model.classes))]
    place = {name: k for k, name in enumerate(known)}
    found = [place.get(written(cell), -1) for cell in cells.tolist()]
    if -1 in found:
        i = found.index(-1)
        raise DataError(f"{where(i)}: {cells[i]!r} is not one of the classes: {', '.join(known[:20])}.")
    return np.array(found, np.int64)
