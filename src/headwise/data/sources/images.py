"""What image sources share: MNIST's idx format, and one data set of the public training and test sets, in [-1, 1].

An idx file has two zero bytes, the type, the number of dimensions, their sizes, and the values.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ..dataset import Dataset
from ..files import Download, Layout, check_labels, read_bytes

Part = tuple[NDArray[np.uint8], NDArray[np.int64]]


def merge(train: Sequence[Part], test: Sequence[Part], classes: tuple[str, ...]) -> Dataset:
    """One data set, training samples first."""
    x = np.concatenate([images for images, _ in (*train, *test)])
    y = np.concatenate([labels for _, labels in (*train, *test)])
    is_test = np.arange(len(y)) >= sum(len(labels) for _, labels in train)
    half = (0.5,) * x.shape[1]
    return Dataset(x, y, classes, mean=half, std=half, official_test=is_test)


NAMES = tuple(f"{split}-{kind}-ubyte.gz" for split in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
SIDE = 28

_UNSIGNED_BYTE = 8


def make_idx_layout(url: str, hashes: tuple[str, str, str, str], homes: tuple[str, ...], unique_names: bool) -> Layout:
    """The four files of a data set in MNIST's format, all below one URL."""
    downloads = tuple(Download(url + name, sha256) for name, sha256 in zip(NAMES, hashes, strict=True))
    return Layout(homes, NAMES, downloads, unique_names)


def read_pair(images: Path, labels: Path, classes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
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
