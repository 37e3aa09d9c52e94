"""Samples and targets from files, as a data.toml describes them: block by block, so that memory does not grow.

Targets have the type and shape that metrics take:
classification  int64 [n], numbers of classes        multilabel    float32 [n, labels] of 0 and 1
regression      float32 [n, quantities]              segmentation  int64 [n, height, width], numbers of classes
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..data.own.arrays import load_npz
from ..data.own.description import PARTS, Description, read_description
from ..data.own.findings import raise_errors
from ..data.own.images import Pictures
from ..data.own.layout import SUFFIXES, Piece, list_image_folders, list_pieces, suffix_of
from ..data.own.load import read_raw
from ..data.own.tables import columns_of, read_blocks
from ..data.own.values import cell_text, to_numbers
from ..data.preprocessing import CellError, Unknown, warn_of_unknown
from ..errors import DataError
from ..settings.fields import build
from ..tasks.registry import kind_of
from .inputs import EncodedTable
from .model import ROWS, TrainedModel


class Batch(NamedTuple):
    """Some samples of one file."""

    names: list[Any]
    """the number of each row in its file, from 0, after its part if the file has several; or the file of each image"""
    raw: Any
    """as `TrainedModel.predict` takes them"""
    y: NDArray[Any] | None
    """targets, as `encode_targets` gives them, if they are read"""
    clients: list[str]
    """the client of each sample; empty names without a data.toml"""
    file: Path
    """the file that holds them; for images, their folder"""


class Selection(NamedTuple):
    """Whether to read targets, and which client's samples; empty: all clients'."""

    labelled: bool
    client: str


def read_batches(path: Path, model: TrainedModel, *, labelled: bool = False, client: str = "") -> Iterator[Batch]:
    """The samples in a table, an NPZ file, an image or a folder of images, or in what a data.toml describes."""
    d = _describe(path, model)
    model = replace(model, card=_name_classes(model.card, d))
    reader = {"npz": _npz, "arrays": _arrays, "images": _images}.get(d.format, _tables)
    empty = True
    for batch in reader(d, model, Selection(labelled, client), _files(path, d, client)):
        empty = False
        yield batch
    if empty:
        raise DataError(f"{path} has no samples{f' of client {client!r}' if client else ''}.")


def place_of(path: Path, model: TrainedModel) -> Path:
    """Where the files are that `read_batches` reads."""
    return _describe(path, model).place


def _describe(path: Path, model: TrainedModel) -> Description:
    reading = model.card["reading"]
    if path.suffix.lower() == ".toml":
        return read_description(path)
    known = build(Description, {**reading, "path": str(path)}) if reading else Description("npz", str(path))
    if path.is_dir():
        return replace(known, format="images")
    for format, endings in SUFFIXES.items():
        if suffix_of(path) in endings and format != "arrays":
            header = _header(path, known) if format == "csv" and known.header else known.header
            return replace(known, format=format, header=header)
    endings = ", ".join(e for format, each in SUFFIXES.items() if format != "arrays" for e in each)
    raise DataError(f"{path} has no known ending: it must be a data.toml, a folder of images, or one of {endings}.")


def _header(path: Path, known: Description) -> tuple[str, ...]:
    """The columns of a file without a header line, which may lack the target; none if it has such a line."""
    try:
        first = columns_of(path, replace(known, format="csv", header=()))
    except (OSError, UnicodeDecodeError):  # `read_blocks` will say why
        return known.header
    if {*known.features.names()} <= {*first}:
        return ()
    rest = tuple(name for name in known.header if name not in known.target)
    return rest if len(first) == len(rest) else known.header


def _files(path: Path, d: Description, client: str) -> list[Piece]:
    """The files to read; of one client, if one is named and files belong to clients."""
    if path.suffix.lower() != ".toml":
        if client:
            raise DataError(f"{path} does not name the clients of its samples: only a data.toml does.")
        return [Piece(path, "")]
    if d.format == "arrays":
        return [Piece(d.place)]
    files = (list_image_folders if d.format == "images" else list_pieces)(d, raise_errors)
    kept = [piece for piece in files if not client or piece.client in (None, client)]
    if not kept:
        raise DataError(f"{path} has no client {client!r}.")
    return kept


def _tables(d: Description, model: TrainedModel, selection: Selection, files: Sequence[Piece]) -> Iterator[Batch]:
    fitted = model.inputs.fitted
    reading = model.card["reading"]
    if fitted is None or not reading or fitted.recipe.form == "array":
        raise DataError(f"{d.place} is a table, but this model takes arrays: an NPZ file with x.")
    form = fitted.recipe.form
    known = build(Description, {**reading, "path": ""})
    single = {"image": known.features.image, "tokens": known.features.text}.get(form)
    columns = list(single) if single else [c.name for c in fitted.recipe.columns]
    if not columns:
        raise DataError(f"{d.place} is a table, but this model takes images: a folder of image files.")
    targets = list(d.target or known.target) if selection.labelled else []
    unknown = Unknown()
    if selection.labelled and not targets:
        raise DataError(f"{d.place} has no column to compare predictions with.")
    for piece in files:
        whose = [d.client] if piece.client is None else []
        before = 0
        for block in read_blocks(piece.path, d, [*columns, *targets, *whose], raise_errors):
            owners = list(map(cell_text, block.columns[d.client])) if whose else [piece.client or ""] * len(block)
            mine = [
                i for i, owner in enumerate(owners) if owner == selection.client or not (selection.client and whose)
            ]
            for at in range(0, len(mine), ROWS):
                rows = np.array(mine[at : at + ROWS])
                cells = {name: block.columns[name][rows] for name in columns}
                numbers = block.lines[rows].tolist()
                if form == "image":
                    raw: Any = [piece.path.parent / str(c) for c in cells[columns[0]]]
                else:
                    whole = form == "tokens"
                    raw = list(cells[columns[0]]) if whole else _encode(model, cells, piece.path, numbers, unknown)
                target_cells = [block.columns[name][rows] for name in targets]
                y = encode_target_cells(
                    model.card, d, target_cells, lambda i, p=piece.path, n=numbers: f"{p}, row {n[i]}"
                )
                yield Batch([before + int(i) for i in rows], raw, y, [owners[i] for i in rows], piece.path)
            before += len(block)
    warn_of_unknown(unknown)


def _encode(
    model: TrainedModel, cells: dict[str, NDArray[Any]], path: Path, numbers: Sequence[Any], unknown: Unknown
) -> EncodedTable:
    """Encode samples, with errors that name their rows in the file."""
    try:
        return EncodedTable(model.inputs.encode(cells, unknown))
    except CellError as error:
        raise DataError(f"{path}, row {numbers[error.row]}, {error.problem}") from None


def _npz(d: Description, model: TrainedModel, selection: Selection, files: Sequence[Piece]) -> Iterator[Batch]:
    """x and y of each file, or those of all three parts."""
    for piece in files:
        arrays = load_npz(piece.path)
        for end in [""] if "x" in arrays else [f"_{part}" for part in PARTS if f"x_{part}" in arrays] or [""]:
            x = arrays.get(f"x{end}")
            y = arrays.get(f"y{end}") if selection.labelled else None
            if x is None or (selection.labelled and y is None):
                needed = f"x{end} and y{end}" if selection.labelled else "x"
                raise DataError(f"{piece.path} has {', '.join(arrays) or 'nothing'}, but must have {needed}.")
            if y is not None and len(y) != len(x):
                raise DataError(f"{piece.path} has {len(x)} samples in x{end}, but {len(y)} targets in y{end}.")
            for batch in _rows(piece.path, model, x, y, [piece.client or ""] * len(x)):
                yield batch._replace(names=[f"{end[1:]}-{i}" for i in batch.names]) if end else batch


def _arrays(d: Description, model: TrainedModel, selection: Selection, files: Sequence[Piece]) -> Iterator[Batch]:
    """A folder that `headwise.fit` stored: all clients in one array."""
    raw = read_raw(d, raise_errors)
    y = raw.y if raw.y is not None else np.array([*raw.cells[0], ""], dtype=object)[raw.labels[0]]
    owners = np.array(raw.owners, dtype=object)[raw.owner]
    mine = np.flatnonzero(owners == selection.client) if selection.client else np.arange(len(owners))
    yield from _rows(d.place, model, raw.x[mine], y[mine] if selection.labelled else None, owners[mine].tolist())


def _rows(
    path: Path, model: TrainedModel, x: NDArray[Any], y: NDArray[Any] | None, clients: list[str]
) -> Iterator[Batch]:
    for at in range(0, len(x), ROWS):
        part = slice(at, at + ROWS)
        targets = None
        if y is not None:
            targets = encode_targets(model.card, y[part], lambda i, at=at: f"{path}, sample {at + i}", in_files=True)
        yield Batch(list(range(len(x))[part]), x[part], targets, clients[part], path)


def _images(d: Description, model: TrainedModel, selection: Selection, files: Sequence[Piece]) -> Iterator[Batch]:
    """A folder's images: where targets are read, in folders named by classes, or beside a folder of masks."""
    if model.inputs.fitted is None or model.inputs.fitted.recipe.form != "image":
        raise DataError(f"{d.place} holds images, but this model was not trained on image files.")
    kind = kind_of(model.card["task"])
    if selection.labelled and not kind.exclusive:
        raise DataError(
            f"{d.place} holds images, but targets of {kind.name} must be columns of a table with their paths."
        )
    for piece in files:
        pixels = kind.per_pixel and (piece.path / "images").is_dir()
        inside = (
            [piece.path] if piece.path.is_file() else sorted((piece.path / ("images" if pixels else "")).rglob("*"))
        )
        paths = [p for p in inside if p.suffix.lower() in SUFFIXES["images"] and not (kind.per_pixel and _is_mask(p))]
        if not paths:
            raise DataError(f"{piece.path} has no images.")
        for at in range(0, len(paths), ROWS // 16):
            part = paths[at : at + ROWS // 16]
            y = _image_targets(model, part) if selection.labelled else None
            yield Batch([str(p) for p in part], part, y, [piece.client or ""] * len(part), piece.path)


def _is_mask(path: Path) -> bool:
    """Whether the file is a mask of a folder of images next to it."""
    return path.parent.name == "masks" and (path.parent.parent / "images").is_dir()


def _image_targets(model: TrainedModel, paths: Sequence[Path]) -> NDArray[Any]:
    """The names of the images' folders, or the masks of the same names."""
    if kind_of(model.card["task"]).one_class:
        names = np.array([p.parent.name for p in paths], dtype=object)
        return encode_targets(model.card, names, lambda i: str(paths[i]), in_files=True)
    pictures = Pictures(model.inputs.shape[1:], model.inputs.shape[0])
    masks = list[NDArray[np.int64]]()
    for path in paths:
        beside = path.parent.parent / "masks" / path.name
        if not beside.is_file():
            raise DataError(f"{path}: its mask {beside} is missing.")
        mask = pictures.read_mask(beside, raise_errors)
        assert mask is not None  # `raise_errors` raises
        masks.append(mask)
    return encode_targets(model.card, np.stack(masks), lambda i: str(paths[i]), in_files=True)


Where = Callable[[int], str]
"""names a sample in a message, by its number"""


def _name_classes(card: Mapping[str, Any], d: Description) -> dict[str, Any]:
    """The card with the class names of this data.toml, if the model knows its classes by number only."""
    if not card["of"].get("numbered") or len(d.classes) != len(card["classes"]):
        return dict(card)
    return {**card, "reading": {**card["reading"], "classes": list(d.classes)}}


def encode_targets(card: Mapping[str, Any], y: Any, where: Where, *, in_files: bool) -> NDArray[Any]:
    """The targets `y` of a model with this card; classes are written as in its files, or by their names."""
    kind = kind_of(card["task"])
    names = list(card["classes"])
    y = np.asarray(y)
    if kind.one_class:
        return _encode_classes(y, *_number_names(card, in_files), where)
    if kind.per_pixel:
        return _encode_masks(y, len(names), tuple(card["inputs"]["shape"][1:]), where)
    targets = y.reshape(-1, 1) if y.ndim == 1 and len(names) == 1 else y
    if targets.ndim != 2 or targets.shape[1] != len(names) or targets.dtype.kind not in "biuf":
        what = f"{y.dtype} of shape {list(y.shape[1:])}"
        raise DataError(f"targets are {what}, but this model needs {len(names)} numbers a sample: {', '.join(names)}.")
    right = np.isfinite(targets) if kind.quantitative else np.isin(targets, (0, 1))
    for i, k in np.argwhere(~right)[:1]:
        must = "a finite number" if kind.quantitative else "0 or 1"
        raise DataError(f"{where(int(i))}: {names[k]} is {targets[i, k]:g}, but must be {must}.")
    return targets.astype(np.float32)


def encode_target_cells(
    card: Mapping[str, Any], d: Description, cells: Sequence[NDArray[Any]], where: Where
) -> NDArray[Any] | None:
    """The same from the target columns of a table; None if there are none."""
    if not cells:
        return None
    kind = kind_of(card["task"])
    if not kind.exclusive and not kind.quantitative and len(cells) == 1:
        separator = d.separator or card["reading"].get("separator", "")
        return _encode_labels(cells[0], separator, *_number_names(card, True), where)
    if kind.one_class:
        return encode_targets(card, cells[0], where, in_files=True)
    if kind.per_pixel:
        raise DataError(f"{d.place} is a table, but masks must be images or an NPZ file with y.")
    columns: list[NDArray[np.float64]] = []
    for k, column in enumerate(cells):
        numbers, wrong = to_numbers(column, d.missing)
        for i in wrong:
            raise DataError(f"{where(i)}: {card['classes'][k]} is {column[i]!r}, but must be a number.")
        columns.append(numbers)
    return encode_targets(card, np.stack(columns, 1), where, in_files=True)


def _number_names(card: Mapping[str, Any], in_files: bool) -> tuple[dict[str, int], list[str]]:
    """The number of each class or label by all its names, and those that messages list."""
    names = list(card["classes"])
    reading = card["reading"]
    in_cells = list(reading.get("classes") or names) if reading else [str(k) for k in range(len(names))]
    known = in_cells if in_files else names
    numbers = {} if reading else {str(k): k for k in range(len(names))}  # public data sets number their classes
    return numbers | {name: k for k, name in enumerate(known)}, known


def _encode_classes(y: NDArray[Any], place: Mapping[str, int], known: list[str], where: Where) -> NDArray[np.int64]:
    if y.ndim != 1:
        raise DataError(f"targets have the shape {list(y.shape)}, but must be one class a sample.")
    numbers = np.array([place.get(cell_text(cell), -1) for cell in y.tolist()], np.int64)
    for i in np.flatnonzero(numbers < 0)[:1]:
        raise DataError(f"{where(int(i))}: {y.tolist()[i]!r} is not one of the classes: {', '.join(known[:20])}.")
    return numbers


def _encode_labels(
    cells: NDArray[Any], separator: str, place: Mapping[str, int], known: list[str], where: Where
) -> NDArray[np.float32]:
    y = np.zeros((len(cells), len(known)), np.float32)
    for i, cell in enumerate(cells.tolist()):
        parts = cell if isinstance(cell, list | tuple) else str(cell).split(separator) if separator else [cell]
        for label in filter(None, map(cell_text, parts)):
            if label not in place:
                raise DataError(f"{where(i)}: {label!r} is not one of the labels: {', '.join(known[:20])}.")
            y[i, place[label]] = 1
    return y


def _encode_masks(y: NDArray[Any], classes: int, size: tuple[int, ...], where: Where) -> NDArray[np.int64]:
    if y.dtype.kind not in "biu" or y.shape[1:] != size:
        what = f"{y.dtype} of shape {list(y.shape[1:])}"
        raise DataError(f"targets are {what}, but must be masks: whole numbers of shape {list(size)}.")
    y = y.astype(np.int64)
    if classes == 2 and y.size and np.isin(y, (0, 255)).all():  # the usual encoding of black and white
        y = y // 255
    for i in np.flatnonzero(((y < 0) | (y >= classes)).any((1, 2)))[:1]:
        raise DataError(f"{where(int(i))}: its mask has the value {y[i].max()}, but must have 0 to {classes - 1}.")
    return y
