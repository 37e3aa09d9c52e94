"""CIFAR-10 — Krizhevsky, 2009. https://www.cs.toronto.edu/~kriz/cifar.html."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import DataError
from ..dataset import Dataset, Part, Source, merge_parts
from ..files import Download, Layout, check_labels, locate, read_bytes
from ..pickles import PickledArray, read_pickle, to_text

PIXELS = (3, 32, 32)
BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
BINARY = Layout(
    ("cifar-10-batches-bin", "cifar-10", "cifar-10/cifar-10-batches-bin"),
    tuple(f"{name}.bin" for name in BATCHES),
    (
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
    ),
)
PYTHON = Layout(
    ("cifar-10-batches-py", "cifar-10", "cifar-10/cifar-10-batches-py"),
    BATCHES,
    (
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        ),
    ),
)

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True)
class CIFAR10(Source):
    """60,000 colour images (32 × 32) of ten kinds of animals and vehicles."""

    def load(self, folder: Path) -> Dataset:
        """Read the binary batches, or the python batches if only those are there; the images are the same."""
        return merge_parts([*map(_read, locate(folder, BINARY, PYTHON))], CLASSES)


def _read(path: Path) -> Part:
    if path.suffix != ".bin":
        return read_batch(path, "labels", len(CLASSES))
    data = np.frombuffer(read_bytes(path), np.uint8)
    record = 1 + math.prod(PIXELS)
    if len(data) % record:
        raise DataError(f"{path} has {len(data)} bytes, but must have {record} for each image.")
    rows = data.reshape(-1, record)
    return rows[:, 1:].reshape(-1, *PIXELS), check_labels(rows[:, 0], len(CLASSES), len(rows), path)


def read_batch(path: Path, key: str, classes: int) -> Part:
    """Images [n, 3, 32, 32], and the labels [n] under `key`."""
    batch = read_pickle(path)
    data = batch.get("data")
    x = data.numbers if isinstance(data, PickledArray) else None
    y = batch.get(key)
    if x is None or x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != math.prod(PIXELS) or len(x) == 0:
        raise DataError(f"{path} must hold 'data' of {math.prod(PIXELS)} bytes per image.")
    if not isinstance(y, list) or not all(type(label) is int and 0 <= label < classes for label in y):
        raise DataError(f"{path} must hold {key!r}, a list of whole numbers from 0 to {classes - 1}.")
    return x.reshape(-1, *PIXELS), check_labels(np.array(y, np.int64), classes, len(x), path)


def read_names(path: Path, key: str, count: int) -> tuple[str, ...]:
    """The label names under `key`."""
    names = read_pickle(path).get(key)
    if not isinstance(names, list) or len(names) != count or not all(isinstance(n, (str, bytes)) for n in names):
        raise DataError(f"{path} must hold {key!r}, a list of {count} names.")
    return tuple(map(to_text, names))
