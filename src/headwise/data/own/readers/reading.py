"""From files to `Raw`: tables with a client column, tables per client, image folders, arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import DataError
from ..description import Description
from ..findings import DataFinding, Report
from .arrays import read_arrays, read_npz
from .layouts import Folder, image_folders, pieces
from .pictures import Pictures
from .raw import Builder, Form, Raw
from .tables import RowBlock, blocks
from .values import BAG, Codes, Hashing, to_numbers


def read_raw(d: Description, report: Report) -> Raw:
    reader = {"images": _images, "npz": read_npz, "arrays": read_arrays}.get(d.format, _tables)
    raw = reader(d, Builder(report, Codes(("",)), _labels(d)))
    if not len(raw):
        raise DataError(f"{d.place} has no samples that can be read.")
    return raw


def _labels(d: Description) -> list[Codes]:
    """One for each target column; arrays have y, and folders of images are named by class."""
    columns = d.target if d.is_table else () if _has_masks(d) else ("",)
    return [Codes(d.missing, d.separator) for _ in columns]


def _has_masks(d: Description) -> bool:
    return d.format == "images" and d.task == "segmentation"


def _tables(d: Description, builder: Builder) -> Raw:
    encoder = Encoder(d)
    for piece in pieces(d, builder.report):
        columns = [*d.features.names(), *d.target, *filter(None, (d.client, d.split.column))]
        before = builder.n
        for block in blocks(piece.path, d, list(dict.fromkeys(columns)), builder.report):
            _add(d, builder, encoder, block, piece.client, piece.part)
        if builder.n == before and piece.client is not None:
            text = "it has no rows that can be read."
            builder.report(DataFinding("error", "empty client", text, piece.path, client=piece.client))
    return builder.raw(encoder.form, {name: codes.seen() for name, codes in encoder.codes.items()})


def _add(d: Description, builder: Builder, encoder: Encoder, block: RowBlock, client: str | None, part: int) -> None:
    owner = np.full(len(block), builder.clients[client]) if client else builder.clients.of(block.columns[d.client])
    if (owner < 0).any():
        block, owner = _owned(d, builder, block, owner)
    x = encoder.encode(block, builder.report)
    if x is None:
        return
    labels = [codes.of(block.columns[name]) for codes, name in zip(builder.labels, d.target, strict=True)]
    parts = time = None
    if d.split.by == "files":
        parts = np.full(len(block), part, np.int8)
    elif d.split.by == "column":
        parts = _parts(d, block, builder.report)
    elif d.split.by == "time":
        time = block.columns[d.split.column]
    builder.add(block, x, owner, labels=labels, part=parts, time=time)


def _owned(
    d: Description, builder: Builder, block: RowBlock, owner: NDArray[np.int64]
) -> tuple[RowBlock, NDArray[np.int64]]:
    """The block without rows that have no client."""
    nobody = owner < 0
    for i in np.flatnonzero(nobody):
        text = "the cell is empty, so the row belongs to no client."
        builder.report(DataFinding("error", "missing client", text, block.file, block.row(int(i)), d.client))
    rows = np.array([block.row(i) for i in range(len(block))], np.int64)[~nobody]
    columns = {name: cells[~nobody] for name, cells in block.columns.items()}
    return replace(block, columns=columns, lines=rows), owner[~nobody]


def _parts(d: Description, block: RowBlock, report: Report) -> NDArray[np.int8]:
    """The part of each row, from the split column."""
    s = d.split
    known = {**dict.fromkeys(s.train, 0), **dict.fromkeys(s.val, 1), **dict.fromkeys(s.test, 2)}
    cells = [str(c).strip() for c in block.columns[s.column].tolist()]
    for i, cell in enumerate(cells):
        if cell not in known:
            text = f"{cell!r} is not a part: use one of {', '.join(known)}."
            report(DataFinding("error", "unknown part", text, block.file, block.row(i), s.column))
    return np.array([known.get(cell, 0) for cell in cells], np.int8)


class Encoder:
    """Encodes a block's columns as one array of numbers."""

    def __init__(self, d: Description) -> None:
        f, p = d.features, d.preprocess
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
            return self._tokens(block, f.text[0])
        parts = [
            *(self._numbers(block, name, report)[:, None] for name in f.number),
            *(_gaps(self.codes[name].of(block.columns[name]))[:, None] for name in f.category),
            *(self._tokens(block, name).astype(np.float64) for name in f.text),
        ]
        return np.concatenate(parts, axis=1)

    def _tokens(self, block: RowBlock, name: str) -> NDArray[np.int32]:
        return self._hashing.tokens(block.columns[name].tolist(), self._d.preprocess.length)

    def _numbers(self, block: RowBlock, name: str, report: Report) -> NDArray[np.float64]:
        cells = block.columns[name]

        def wrong(i: int) -> None:
            text = f"{cells[i]!r} is not a number and not listed in missing."
            report(DataFinding("error", "not a number", text, block.file, block.row(i), name))

        found = to_numbers(cells, self._d.missing, wrong)
        for i in np.flatnonzero(np.isinf(found)):
            text = "it is infinite, but must be finite."
            report(DataFinding("error", "infinite number", text, block.file, block.row(int(i)), name))
        return found


def _gaps(codes: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.where(codes < 0, np.nan, codes)


@dataclass(frozen=True)
class OneFile:
    """A sample in its own file."""

    file: Path

    def row(self, i: int) -> None:
        """A file without rows."""

    def __len__(self) -> int:
        return 1


def _images(d: Description, builder: Builder) -> Raw:
    pictures = Pictures(d.preprocess.size, d.preprocess.channels)
    masks = _has_masks(d)
    for folder in image_folders(d, builder.report):
        before = builder.n
        for name, paths in _groups(folder, masks):
            for path in paths:
                _add_image(builder, pictures, folder, path, None if masks else name)
        if builder.n == before:
            text = "the folder has no images: it needs one folder of images per class."
            builder.report(DataFinding("error", "empty client", text, folder.path, client=folder.client))
    return builder.raw("image", {})


def _groups(folder: Folder, masks: bool) -> list[tuple[str, list[Path]]]:
    return [(name, folder.of(name)) for name in (["images"] if masks else folder.names())]


def _add_image(builder: Builder, pictures: Pictures, folder: Folder, path: Path, label: str | None) -> None:
    x = pictures.read(path, builder.report)
    if x is None:
        return
    part = None if folder.part < 0 else np.array([folder.part], np.int8)
    owner = np.array([builder.clients[folder.client]])
    if label is not None:
        builder.add(OneFile(path), x[None], owner, labels=[np.array([builder.labels[0][label]])], part=part)
        return
    beside = folder.path / "masks" / path.name
    if not beside.is_file():
        builder.report(DataFinding("error", "missing label", f"there is no mask {beside}.", path, client=folder.client))
        return
    mask = pictures.read_mask(beside, builder.report)
    if mask is not None:
        builder.add(OneFile(path), x[None], owner, y=mask[None], part=part)
