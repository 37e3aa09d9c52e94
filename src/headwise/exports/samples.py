"""Samples to predict, from files as a data.toml describes them: block by block, so that memory does not grow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..data.own.description import PARTS, Description, read_description
from ..data.own.findings import raise_errors
from ..data.own.layout import SUFFIXES, Piece, image_folders, pieces
from ..data.own.load import read_raw
from ..data.own.readers.arrays import load_npz
from ..data.own.readers.images import Pictures
from ..data.own.readers.tables import blocks, columns_of
from ..data.own.readers.values import cell_text
from ..data.preprocessing import CellError, Unknown, warn_of_unknown
from ..errors import DataError
from ..settings.fields import build
from .model import ROWS, TrainedModel
from .targets import by_order, expected, expected_cells


class Batch(NamedTuple):
    """Some samples of one file."""

    names: list[Any]
    """the number of each row in its file, after the name of its part if it has several; or the file of each image"""
    raw: Any
    """as `TrainedModel.say` takes them"""
    y: NDArray[Any] | None
    """what the model should say, as `expected` has it, where it was asked for"""
    clients: list[str]
    """whose each sample is; empty names unless a data.toml says it"""
    file: Path
    """that holds them; of images, their folder"""


class Asked(NamedTuple):
    """Whether targets are wanted, and whose samples; empty: everybody's."""

    labelled: bool
    client: str


def read(path: Path, model: TrainedModel, *, labelled: bool = False, client: str = "") -> Iterator[Batch]:
    """The samples in a table, an NPZ file, an image or a folder of images, or in what a data.toml describes."""
    d, found = _description(path, model), False
    model = replace(model, card=by_order(model.card, d))
    reader = {"npz": _npz, "arrays": _arrays, "images": _images}.get(d.format, _tables)
    for batch in reader(d, model, Asked(labelled, client), _files(path, d, client)):
        found = True
        yield batch
    if not found:
        raise DataError(f"{path} has no samples{f' of client {client!r}' if client else ''}.")


def place_of(path: Path, model: TrainedModel) -> Path:
    """Where the files are that `read` reads."""
    return _description(path, model).place


def _description(path: Path, model: TrainedModel) -> Description:
    reading = model.card["reading"]
    if path.suffix.lower() == ".toml":
        return read_description(path)
    known = build(Description, {**reading, "path": str(path)}) if reading else Description("npz", str(path))
    if path.is_dir():
        return replace(known, format="images")
    for format, endings in SUFFIXES.items():
        if path.suffix.lower() in endings and format != "arrays":
            header = _header(path, known) if format == "csv" and known.header else known.header
            return replace(known, format=format, header=header)
    endings = ", ".join(e for format, each in SUFFIXES.items() if format != "arrays" for e in each)
    raise DataError(f"{path} has no known ending: it must be a data.toml, a folder of images, or one of {endings}.")


def _header(path: Path, known: Description) -> tuple[str, ...]:
    """The columns of a file without a header line, which may lack the target; none if it has such a line."""
    try:
        first = columns_of(path, replace(known, format="csv", header=()))
    except (OSError, UnicodeDecodeError):  # `blocks` will say why
        return known.header
    if {*known.features.names()} <= {*first}:
        return ()
    rest = tuple(name for name in known.header if name not in known.target)
    return rest if len(first) == len(rest) else known.header


def _files(path: Path, d: Description, client: str) -> list[Piece]:
    """The files to read; of one client, if one is named and files belong to clients."""
    if path.suffix.lower() != ".toml":
        if client:
            raise DataError(f"{path} does not say whose samples it has: only a data.toml does.")
        return [Piece(path, "")]
    if d.format == "arrays":
        return [Piece(d.place)]
    if d.format == "images":
        found = [Piece(folder.path, folder.client) for folder in image_folders(d, raise_errors)]
    else:
        found = pieces(d, raise_errors)
    kept = [piece for piece in found if not client or piece.client in (None, client)]
    if not kept:
        raise DataError(f"{path} has no client {client!r}.")
    return kept


def _tables(d: Description, model: TrainedModel, asked: Asked, files: Sequence[Piece]) -> Iterator[Batch]:
    fitted, reading = model.inputs.fitted, model.card["reading"]
    if fitted is None or not reading or fitted.recipe.form == "array":
        raise DataError(f"{d.place} is a table, but this model takes arrays: an NPZ file with x.")
    form, known = fitted.recipe.form, build(Description, {**reading, "path": ""})
    single = {"image": known.features.image, "tokens": known.features.text}.get(form)
    columns = list(single) if single else [c.name for c in fitted.recipe.columns]
    if not columns:
        raise DataError(f"{d.place} is a table, but this model takes images: a folder of image files.")
    targets, unknown = list(d.target or known.target) if asked.labelled else [], Unknown()
    if asked.labelled and not targets:
        raise DataError(f"{d.place} has no column to compare predictions with.")
    for piece in files:
        whose = [d.client] if piece.client is None else []
        for block in blocks(piece.path, d, [*columns, *targets, *whose], raise_errors):
            owners = list(map(cell_text, block.columns[d.client])) if whose else [piece.client or ""] * len(block)
            mine = [i for i, owner in enumerate(owners) if owner == asked.client or not (asked.client and whose)]
            for at in range(0, len(mine), ROWS):
                rows = np.array(mine[at : at + ROWS])
                cells = {name: block.columns[name][rows] for name in columns}
                numbers = [block.row(int(i)) for i in rows]
                if form == "image":
                    raw: Any = [piece.path.parent / str(c) for c in cells[columns[0]]]
                else:
                    whole = form == "tokens"
                    raw = list(cells[columns[0]]) if whole else _encoded(model, cells, piece.path, numbers, unknown)
                said = [block.columns[name][rows] for name in targets]
                y = expected_cells(model.card, d, said, lambda i, p=piece.path, n=numbers: f"{p}, row {n[i]}")
                yield Batch(numbers, raw, y, [owners[i] for i in rows], piece.path)
    warn_of_unknown(unknown)


def _encoded(
    model: TrainedModel, cells: dict[str, NDArray[Any]], path: Path, numbers: Sequence[Any], unknown: Unknown
) -> NDArray[Any]:
    """Encoded here, where it is known which rows of the file these are."""
    try:
        return model.inputs.encode(cells, unknown)
    except CellError as error:
        raise DataError(f"{path}, row {numbers[error.row]}, {error.problem}") from None


def _npz(d: Description, model: TrainedModel, asked: Asked, files: Sequence[Piece]) -> Iterator[Batch]:
    """x and y of each file, or those of all three parts."""
    for piece in files:
        found = load_npz(piece.path)
        for end in [""] if "x" in found else [f"_{part}" for part in PARTS if f"x_{part}" in found] or [""]:
            x, y = found.get(f"x{end}"), found.get(f"y{end}") if asked.labelled else None
            if x is None or (asked.labelled and y is None):
                needed = f"x{end} and y{end}" if asked.labelled else "x"
                raise DataError(f"{piece.path} has {', '.join(found) or 'nothing'}, but must have {needed}.")
            if y is not None and len(y) != len(x):
                raise DataError(f"{piece.path} has {len(x)} samples in x{end}, but {len(y)} targets in y{end}.")
            for batch in _rows(piece.path, model, x, y, [piece.client or ""] * len(x)):
                yield batch._replace(names=[f"{end[1:]}-{i}" for i in batch.names]) if end else batch


def _arrays(d: Description, model: TrainedModel, asked: Asked, files: Sequence[Piece]) -> Iterator[Batch]:
    """A folder that `headwise.fit` stored: all clients in one array."""
    raw = read_raw(d, raise_errors)
    y = raw.y if raw.y is not None else np.array([*raw.cells[0], ""], dtype=object)[raw.labels[0]]
    owners = np.array(raw.owners, dtype=object)[raw.owner]
    mine = np.flatnonzero(owners == asked.client) if asked.client else np.arange(len(owners))
    yield from _rows(d.place, model, raw.x[mine], y[mine] if asked.labelled else None, owners[mine].tolist())


def _rows(
    path: Path, model: TrainedModel, x: NDArray[Any], y: NDArray[Any] | None, clients: list[str]
) -> Iterator[Batch]:
    for at in range(0, len(x), ROWS):
        part, said = slice(at, at + ROWS), None if y is None else y[at : at + ROWS]
        if said is not None:
            said = expected(model.card, said, lambda i, at=at: f"{path}, sample {at + i}", in_files=True)
        yield Batch(list(range(len(x))[part]), x[part], said, clients[part], path)


def _images(d: Description, model: TrainedModel, asked: Asked, files: Sequence[Piece]) -> Iterator[Batch]:
    """A folder's images: where targets are asked for, in folders named by classes, or beside a folder of masks."""
    if model.inputs.fitted is None or model.inputs.fitted.recipe.form != "image":
        raise DataError(f"{d.place} holds images, but this model was not trained on image files.")
    task = model.card["task"]
    if asked.labelled and task not in ("classification", "segmentation"):
        raise DataError(f"{d.place} holds images, but targets of {task} must be columns of a table with their paths.")
    for piece in files:
        pixels = task == "segmentation" and (piece.path / "images").is_dir()
        inside = (
            [piece.path] if piece.path.is_file() else sorted((piece.path / ("images" if pixels else "")).rglob("*"))
        )
        paths = [p for p in inside if p.suffix.lower() in SUFFIXES["images"] and not _is_mask(p, task)]
        if not paths:
            raise DataError(f"{piece.path} has no images.")
        for at in range(0, len(paths), ROWS // 16):
            part = paths[at : at + ROWS // 16]
            y = _image_targets(model, part) if asked.labelled else None
            yield Batch([str(p) for p in part], part, y, [piece.client or ""] * len(part), piece.path)


def _is_mask(path: Path, task: str) -> bool:
    """Of a folder of images beside it."""
    return task == "segmentation" and path.parent.name == "masks" and (path.parent.parent / "images").is_dir()


def _image_targets(model: TrainedModel, paths: Sequence[Path]) -> NDArray[Any]:
    """The names of the images' folders, or the masks of the same names."""
    if model.card["task"] == "classification":
        said = np.array([p.parent.name for p in paths], dtype=object)
        return expected(model.card, said, lambda i: str(paths[i]), in_files=True)
    pictures, masks = Pictures(model.inputs.shape[1:], model.inputs.shape[0]), list[NDArray[np.int64]]()
    for path in paths:
        beside = path.parent.parent / "masks" / path.name
        if not beside.is_file():
            raise DataError(f"{path}: there is no mask {beside}.")
        mask = pictures.read_mask(beside, raise_errors)
        assert mask is not None  # `raise_errors` raises
        masks.append(mask)
    return expected(model.card, np.stack(masks), lambda i: str(paths[i]), in_files=True)
