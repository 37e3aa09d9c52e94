"""Reads image files as uint8 arrays of one size and number of channels, and folders of them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError, explain_missing
from ...tasks.registry import kind_of
from .description import Description
from .findings import DataFinding, Findings, Report
from .layout import IMAGES, Piece, list_folder, list_image_folders, list_subfolders
from .raw import Builder, Raw

MODES = {1: "L", 3: "RGB"}
LARGEST = 1 << 26
"""pixels in one image"""
LARGEST_FILE = 1 << 28
"""bytes of one image file"""
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
"""what Pillow may decode: other formats run programs, or have never been tried"""


class Pictures:
    """Reads images; a size or number of channels that is not given is taken from the first image."""

    def __init__(self, size: Sequence[int], channels: int) -> None:
        self.size = (size[0], size[1]) if size else None
        self.channels = channels
        self._resizes = bool(size)
        self._converts = bool(channels)

    def read(self, path: Path, report: Report) -> NDArray[np.uint8] | None:
        """uint8 [channels, height, width], or None after reporting an error."""
        image = open_image(path, report)
        if image is None:
            return None
        size = (image.height, image.width)
        channels = 1 if image.mode in ("1", "L", "I", "I;16", "LA") else 3
        self.size = self.size or size
        self.channels = self.channels or channels
        if size != self.size and not self._resizes:
            text = f"it has {size[0]} x {size[1]} pixels, but others have {self.size[0]} x {self.size[1]}: "
            report(DataFinding("error", "mixed shapes", f"{text}set preprocess.size to resize all.", path))
            return None
        if channels != self.channels and not self._converts:
            text = f"it is {'grey' if channels == 1 else 'in colour'}, but others are not: "
            report(DataFinding("error", "mixed channels", f"{text}set preprocess.channels to convert all.", path))
            return None
        image = image.convert(MODES[self.channels])
        if size != self.size:
            image = image.resize((self.size[1], self.size[0]), _import_pillow(path).Resampling.BILINEAR)
        return np.asarray(image, np.uint8).reshape(*self.size, self.channels).transpose(2, 0, 1)

    def read_mask(self, path: Path, report: Report) -> NDArray[np.int64] | None:
        """The class of each pixel [height, width]: grey values or palette indices."""
        image = open_image(path, report)
        if image is None:
            return None
        image = image if image.mode == "P" else image.convert("L")
        if self.size and (image.height, image.width) != self.size:
            if not self._resizes:
                text = (
                    f"the mask has {image.height} x {image.width} pixels, but images {self.size[0]} x {self.size[1]}: "
                )
                report(DataFinding("error", "mixed shapes", f"{text}set preprocess.size to resize all.", path))
                return None
            image = image.resize((self.size[1], self.size[0]), _import_pillow(path).Resampling.NEAREST)
        return np.asarray(image, np.int64)


def read_sizes(paths: Sequence[Path]) -> set[tuple[int, int]]:
    """The heights and widths of these images; those that can't be read are left to `headwise data check`."""
    sizes: set[tuple[int, int]] = set()
    for path in paths:
        if (image := _open_header(path, Findings())) is not None:
            sizes.add((image.height, image.width))
            image.close()
    return sizes


def open_image(path: Path, report: Report) -> Any:
    """The decoded image of Pillow, or None after reporting an error."""
    if (image := _open_header(path, report)) is None:
        return None
    try:
        with image:  # closes the file, which one with several frames would keep open
            return image.copy()
    except Exception:  # hostile bytes make decoders raise anything
        report(DataFinding("error", "unreadable image", "it is not a readable image.", path))
        return None


def _open_header(path: Path, report: Report) -> Any:
    """The image, of which only the header is read; None after reporting an error."""
    pillow = _import_pillow(path)
    try:
        _check_file(path)
        with warnings.catch_warnings(action="ignore"):  # Pillow's warning about large images, which are refused here
            image = pillow.open(path, formats=FORMATS)
        if image.width * image.height <= LARGEST:
            return image
        image.close()
        problem = f"it has more than {LARGEST:,} pixels."
    except pillow.DecompressionBombError:
        problem = f"it has more than {LARGEST:,} pixels."
    except DataError as error:
        problem = str(error)
    except Exception:  # hostile bytes make decoders raise anything
        problem = "it is not a readable image."
    report(DataFinding("error", "unreadable image", problem, path))
    return None


def _check_file(path: Path) -> None:
    """Raise a DataError unless it is a file of a sensible size: opening a named pipe would wait forever."""
    if not os.path.isfile(path):
        raise DataError("it is not a file." if os.path.exists(path) else "there is no such file.")
    if os.path.getsize(path) > LARGEST_FILE:
        raise DataError(f"it has more than {LARGEST_FILE:,} bytes.")


def _import_pillow(path: Path) -> Any:
    with explain_missing(f"{path} is an image, which needs pillow: pip install 'headwise[images]'.", DataError):
        from PIL import Image
    return Image


def has_masks(d: Description) -> bool:
    return d.format == "images" and d.task is not None and kind_of(d.task).per_pixel


def read_images(d: Description, builder: Builder) -> Raw:
    pictures = Pictures(d.preprocess.size, d.preprocess.channels)
    masks = has_masks(d)
    for folder in list_image_folders(d, builder.report):
        before = builder.n
        for inner in [folder.path / "images"] if masks else list_subfolders(folder.path):
            for path in list_folder(inner):
                if path.suffix.lower() in IMAGES:  # opened if regular
                    _add_image(builder, pictures, folder, path, None if masks else inner.name)
        if builder.n == before:
            text = "the folder has no images: it needs one folder of images per class."
            builder.report(DataFinding("error", "empty client", text, folder.path, client=folder.client or ""))
    return replace(builder.build("image", {}), label_type="str")  # classes are named by folders


def _add_image(builder: Builder, pictures: Pictures, folder: Piece, path: Path, label: str | None) -> None:
    x = pictures.read(path, builder.report)
    if x is None:
        return
    part = None if folder.part < 0 else np.array([folder.part], np.int8)
    client = folder.client or ""
    owner = np.array([builder.clients[client]])
    if label is not None:
        builder.add(path, None, x[None], owner, labels=[np.array([builder.labels[0][label]])], part=part)
        return
    beside = folder.path / "masks" / path.name
    if not beside.is_file():
        builder.report(DataFinding("error", "missing label", f"there is no mask {beside}.", path, client=client))
        return
    mask = pictures.read_mask(beside, builder.report)
    if mask is not None:
        builder.add(path, None, x[None], owner, y=mask[None], part=part)
