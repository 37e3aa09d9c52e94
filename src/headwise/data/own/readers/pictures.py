"""Reads image files as uint8 arrays of one size and number of channels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import DataError
from ..findings import DataFinding, Report

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
MODES = {1: "L", 3: "RGB"}
LARGEST = 1 << 26
"""pixels in one image"""


class Pictures:
    """Reads images; a size or number of channels that is not given is taken from the first image."""

    def __init__(self, size: Sequence[int], channels: int) -> None:
        self.size = (size[0], size[1]) if size else None
        self.channels = channels
        self._asked = bool(size), bool(channels)

    def read(self, path: Path, report: Report) -> NDArray[np.uint8] | None:
        """uint8 [channels, height, width], or None after reporting an error."""
        image = _open(path, report)
        if image is None:
            return None
        size = (image.height, image.width)
        channels = 1 if image.mode in ("1", "L", "I", "I;16", "LA") else 3
        self.size, self.channels = self.size or size, self.channels or channels
        if size != self.size and not self._asked[0]:
            text = f"it has {size[0]} x {size[1]} pixels, but others have {self.size[0]} x {self.size[1]}: "
            report(DataFinding("error", "mixed shapes", f"{text}set preprocess.size to resize all.", path))
            return None
        if channels != self.channels and not self._asked[1]:
            text = f"it is {'grey' if channels == 1 else 'in colour'}, but others are not: "
            report(DataFinding("error", "mixed channels", f"{text}set preprocess.channels to convert all.", path))
            return None
        image = image.convert(MODES[self.channels])
        if size != self.size:
            image = image.resize((self.size[1], self.size[0]), _resampling("BILINEAR"))
        return np.asarray(image, np.uint8).reshape(*self.size, self.channels).transpose(2, 0, 1)

    def read_mask(self, path: Path, report: Report) -> NDArray[np.int64] | None:
        """The class of each pixel [height, width]: grey values or palette indices."""
        image = _open(path, report)
        if image is None:
            return None
        image = image if image.mode == "P" else image.convert("L")
        if self.size and (image.height, image.width) != self.size:
            if not self._asked[0]:
                text = (
                    f"the mask has {image.height} x {image.width} pixels, but images {self.size[0]} x {self.size[1]}: "
                )
                report(DataFinding("error", "mixed shapes", f"{text}set preprocess.size to resize all.", path))
                return None
            image = image.resize((self.size[1], self.size[0]), _resampling("NEAREST"))
        return np.asarray(image, np.int64)


def _open(path: Path, report: Report) -> Any:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise DataError(f"{path} is an image, which needs pillow: pip install 'headwise[images]'.") from None
    try:
        image = Image.open(path)
        if image.width * image.height > LARGEST:
            image.close()
            report(DataFinding("error", "unreadable image", f"it has more than {LARGEST:,} pixels.", path))
            return None
        image.load()
        return image
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        report(DataFinding("error", "unreadable image", "it is not a readable image.", path))
        return None


def _resampling(name: str) -> Any:
    from PIL import Image

    return getattr(Image.Resampling, name)
