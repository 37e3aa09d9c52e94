"""Office-Caltech10 — Gong, Shi, Sha, Grauman, 2012. https://doi.org/10.1109/CVPR.2012.6247911.

SURF features: a histogram of 800 visual words per image. Domains share no statistics: each histogram is divided by its
own sum, and the square root is taken (Hellinger) and scaled so that the mean square is 1.
"""

from __future__ import annotations

import io
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ..dataset import Dataset, Source
from ..files import Layout, check_labels, locate, read_bytes

DOMAINS = ("amazon", "caltech10", "dslr", "webcam")
HOMES = ("office-caltech10", "office_caltech_10", "ToRelease_GFK/data")
SHORT = Layout(HOMES, tuple(f"{domain}.mat" for domain in DOMAINS))
ORIGINAL = Layout(HOMES, tuple(f"{domain}_SURF_L10.mat" for domain in ("amazon", "Caltech10", "dslr", "webcam")))
WORDS = 800
MOST = 1_000_000
LARGEST = 1 << 26
"""bytes of a file, packed or not"""
COMPRESSED = 15
"""the type of a compressed element of a MATLAB 5 file"""

CLASSES = (
    *("backpack", "bike", "calculator", "headphones", "keyboard"),
    *("laptop", "monitor", "mouse", "mug", "projector"),
)


@dataclass(frozen=True)
class OfficeCaltech10(Source):
    """2,533 images of ten kinds of objects from four domains, as counts of 800 visual words."""

    default_model: ClassVar[str] = "mlp"

    def load(self, folder: Path) -> Dataset:
        """Read the four .mat files; each domain is a natural client."""
        sites = [_read(path) for path in locate(folder, SHORT, ORIGINAL)]
        return Dataset(
            np.concatenate([x for x, _ in sites]),
            np.concatenate([y for _, y in sites]),
            CLASSES,
            owner=np.repeat(np.arange(len(sites)), [len(y) for _, y in sites]),
            owners=DOMAINS,
        )


def _read(path: Path) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    counts, labels = _read_matrices(path)
    if counts.ndim != 2 or counts.shape[1] != WORDS or len(counts) == 0:
        raise DataError(f"{path} has 'fts' of shape {counts.shape}, but must have {WORDS} columns.")
    if not ((counts >= 0) & (counts <= MOST)).all():
        raise DataError(f"{path} has 'fts' that are not counts from 0 to {MOST:,}.")
    if not np.isin(labels, np.arange(1, 1 + len(CLASSES))).all():
        raise DataError(f"{path} has labels that are not whole numbers from 1 to {len(CLASSES)}.")
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True, dtype=np.float64), 1)
    y = check_labels(labels.ravel().astype(np.int64) - 1, len(CLASSES), len(counts), path)
    return np.sqrt(WORDS * shares).astype(np.float32), y


def _decompress(data: bytes) -> bytes:
    """The same MATLAB 5 file with its compressed elements unpacked, which scipy would do without a limit."""
    header = 128
    parts = [data[:header]]
    order = "<" if data[126:128] == b"IM" else ">"
    at = header
    while at + 8 <= len(data):
        kind, size = struct.unpack_from(f"{order}II", data, at)
        if kind != COMPRESSED:
            size = 0 if kind >> 16 else size + -size % 8  # a small element is within its tag
            parts.append(data[at : at + 8 + size])
        else:
            inner = zlib.decompressobj().decompress(data[at + 8 : at + 8 + size], LARGEST + 1)
            parts.append(inner)
        if sum(map(len, parts)) > LARGEST:
            raise ValueError
        at += 8 + size
    return b"".join([*parts, data[at:]])


def _read_matrices(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    from scipy.io import loadmat  # slow to import

    try:
        data = _decompress(read_bytes(path, LARGEST))
        content = loadmat(io.BytesIO(data), variable_names=["fts", "labels"])
    except DataError:
        raise
    except Exception:  # a damaged file can make scipy raise anything
        raise DataError(f"{path} is not a MATLAB file, or is damaged.") from None
    matrices = content.get("fts"), content.get("labels")
    if not all(isinstance(matrix, np.ndarray) and matrix.dtype.kind in "uif" for matrix in matrices):
        raise DataError(f"{path} must hold numeric 'fts' and 'labels'.")
    return matrices  # pyright: ignore[reportReturnType]
