"""MNIST — LeCun, Cortes, Burges, 1998. http://yann.lecun.com/exdb/mnist/.

Its idx files have two zero bytes, the type, the number of dimensions, their sizes, and the values.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ..dataset import Dataset, Part, Source, merge_parts
from ..files import Download, Layout, check_labels, locate, read_bytes

NAMES = tuple(f"{split}-{kind}-ubyte.gz" for split in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
SIDE = 28

_UNSIGNED_BYTE = 8


def make_idx_layout(url: str, hashes: tuple[str, str, str, str], homes: tuple[str, ...], unique_names: bool) -> Layout:
    """The four files of a data set in MNIST's format, all below one URL."""
    downloads = tuple(Download(url + name, sha256) for name, sha256 in zip(NAMES, hashes, strict=True))
    return Layout(homes, NAMES, downloads, unique_names)


FILES = make_idx_layout(
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
    homes=("mnist", "MNIST/raw", "MNIST"),
    unique_names=True,
)


@dataclass(frozen=True)
class MNIST(Source):
    """70,000 grey images (28 × 28) of handwritten digits."""

    def load(self, folder: Path) -> Dataset:
        """Read the four idx files."""
        classes = tuple("0123456789")
        x, y, test_x, test_y = locate(folder, FILES)
        return merge_parts([read_pair(x, y, 10), read_pair(test_x, test_y, 10)], classes)


def read_pair(images: Path, labels: Path, classes: int) -> Part:
    """Images [n, 1, 28, 28] and their labels [n]."""
    x = read_idx(images, dimensions=3)
    if x.shape[0] == 0 or x.shape[1:] != (SIDE, SIDE):
        raise DataError(f"{images} has shape {x.shape}, but must hold images of {SIDE} × {SIDE} pixels.")
    return x[:, None], check_labels(read_idx(labels, dimensions=1), classes, len(x), labels)


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The file's array of unsigned bytes, gzipped or not."""
    data = read_bytes(path)
    if data[:4] != bytes((0, 0, _UNSIGNED_BYTE, dimensions)):
        raise DataError(f"{path} does not start like an idx file of bytes with {dimensions} dimensions.")
    start = 4 + 4 * dimensions
    if len(data) < start:
        raise DataError(f"{path} ends inside its header.")
    shape = struct.unpack(f">{dimensions}I", data[4:start])
    if len(data) - start != math.prod(shape):
        raise DataError(f"{path} holds {len(data) - start} values, but its header says {math.prod(shape)}.")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)
