"""Tiny ImageNet — Le, Yang, Stanford CS231N, 2015. https://cs231n.stanford.edu/reports/2015/pdfs/yle_project.pdf."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ..dataset import Dataset, Part, Source, merge_parts
from ..files import Download, Layout, locate, read_text
from ..own.findings import raise_errors
from ..own.images import open_image

FILES = Layout(
    ("tiny-imagenet-200",),
    ("wnids.txt", "words.txt"),
    (
        Download(
            "https://cs231n.stanford.edu/tiny-imagenet-200.zip",
            "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
        ),
    ),
)
SIDE = 64


@dataclass(frozen=True)
class TinyImageNet(Source):
    """100,000 colour images (64 × 64) of two hundred kinds of things."""

    include_val: bool = False
    "add the 10,000 validation images, marked as the public test set"

    def load(self, folder: Path) -> Dataset:
        """Decode the JPEG images, which needs pillow."""
        ids, glossary = locate(folder, FILES)
        kinds = sorted(read_text(ids).split())
        if not kinds or not all(re.fullmatch(r"n\d{8}", kind) for kind in kinds):
            raise DataError(f"{ids} must list WordNet ids like n01443537.")
        parts = [_read_train(ids.parent, kind, label) for label, kind in enumerate(kinds)]
        parts += [_read_val(ids.parent / "val", kinds)] if self.include_val else []
        return merge_parts(parts, _read_names(glossary, kinds), tests=int(self.include_val))


def _read_train(root: Path, kind: str, label: int) -> Part:
    paths = sorted((root / "train" / kind / "images").glob("*.JPEG"))
    if not paths:
        raise DataError(f"{root / 'train' / kind / 'images'} has no JPEG images.")
    return _decode(paths), np.full(len(paths), label, np.int64)


def _read_val(root: Path, kinds: list[str]) -> Part:
    """The validation images; each line lists a name, a kind and a bounding box, which is not used."""
    listing = root / "val_annotations.txt"
    number = {kind: label for label, kind in enumerate(kinds)}
    rows = [line.split("\t") for line in read_text(listing).splitlines()]
    for row in rows:
        if len(row) < 2 or row[1] not in number or Path(row[0]).name != row[0]:
            raise DataError(f"{listing} has a line that is not an image's name and a known kind: {row[0]!r}.")
    labels = np.array([number[row[1]] for row in rows], np.int64)
    return _decode([root / "images" / row[0] for row in rows]), labels


def _decode(paths: list[Path]) -> NDArray[np.uint8]:
    x = np.empty((len(paths), 3, SIDE, SIDE), np.uint8)
    for row, path in zip(x, paths, strict=True):
        image = open_image(path, raise_errors)
        if image.size != (SIDE, SIDE):
            raise DataError(f"{path} is not an image of {SIDE} × {SIDE} pixels.")
        row[:] = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    return x


def _read_names(glossary: Path, kinds: list[str]) -> tuple[str, ...]:
    """The first word that describes each kind."""
    words = dict(line.split("\t", 1) for line in read_text(glossary).splitlines() if "\t" in line)
    return tuple(words.get(kind, kind).split(",")[0].strip() for kind in kinds)
