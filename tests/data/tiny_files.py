"""Tiny copies of the public files, and what every data set promises."""

from __future__ import annotations

import gzip
import pickle
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy.io import savemat

from headwise.data.dataset import Dataset
from headwise.data.sources.cifar10 import BATCHES
from headwise.data.sources.heart_disease import HOSPITALS
from headwise.data.sources.mnist import NAMES
from headwise.data.sources.office_caltech10 import DOMAINS

RNG = np.random.default_rng(0)
PATIENT = "63,1,4,140,260,0,1,112,1,3,2,?,?,2\n"


def write_gzip(data: bytes) -> bytes:
    """Gzipped, without the time of day: bytes that name a test must be the same in every process."""
    return gzip.compress(data, mtime=0)


def sentence(part: str) -> str:
    """Matches one line that holds `part` and ends in a full stop."""
    return rf"\A[^\n]*{re.escape(part)}[^\n]*\.\Z"


def noise(*shape: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def idx_bytes(array: np.ndarray[Any, Any]) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(home: Path, pack: bool = True) -> list[np.ndarray[Any, Any]]:
    arrays = [noise(5, 28, 28), np.arange(5, dtype=np.uint8), noise(2, 28, 28), np.array([9, 0], np.uint8)]
    for name, array in zip(NAMES, arrays, strict=True):
        data = idx_bytes(array)
        write(home / (name if pack else name[:-3]), write_gzip(data) if pack else data)
    return arrays


def write_cifar10(home: Path, binary: bool) -> np.ndarray[Any, Any]:
    x = noise(6, 2, 3072)
    for name, rows in zip(BATCHES, x, strict=True):
        if binary:
            write(home / f"{name}.bin", b"".join(bytes([3]) + row.tobytes() for row in rows))
        else:
            write(home / name, pickle.dumps({b"data": rows, b"labels": [3, 3]}, 2))
    return x


def write_cifar100(home: Path) -> None:
    for name, n in (("train", 4), ("test", 2)):
        labels = {"fine_labels": list(range(n)), "coarse_labels": [19] * n}
        write(home / name, pickle.dumps({"data": noise(n, 3072), **labels}, 2))
    names = {"fine_label_names": [f"f{i}" for i in range(100)], "coarse_label_names": [f"c{i}" for i in range(20)]}
    write(home / "meta", pickle.dumps(names, 2))


def write_news(home: Path) -> None:
    write(home / "train.csv", b'"3","The cat","sat; on ""the"" mat."\n"1","A dog","the cat"\n')
    write(home / "test.csv", b'"4","The","<br />mat"\n')


def write_heart(home: Path, line: str = PATIENT) -> None:
    for number, hospital in enumerate(HOSPITALS, start=1):
        write(home / f"processed.{hospital}.data", (line * number).encode())


def write_office(home: Path, **changed: Any) -> None:
    home.mkdir(parents=True, exist_ok=True)
    for number, domain in enumerate(DOMAINS, start=1):
        labels = np.full((number, 1), number, np.uint8)
        savemat(home / f"{domain}.mat", {"fts": noise(number, 800), "labels": labels} | changed)


def write_jpeg(path: Path, side: int = 64, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (side, side), 200).save(path, format="JPEG")


def write_tiny(home: Path) -> None:
    write(home / "wnids.txt", b"n00000002\nn00000001\n")
    write(home / "words.txt", b"n00000001\tgoldfish, Carassius auratus\nn00000002\tfrog\nn00000003\tnewt\n")
    for kind in ("n00000001", "n00000002"):
        write_jpeg(home / f"train/{kind}/images/{kind}_0.JPEG")
        write_jpeg(home / f"train/{kind}/images/{kind}_1.JPEG", mode="L")
    write_jpeg(home / "val/images/val_0.JPEG")
    write(home / "val/val_annotations.txt", b"val_0.JPEG\tn00000002\t0\t0\t62\t62\n")


def assert_sound(data: Dataset) -> None:
    """What every data set promises."""
    assert len(data.x) == len(data.y) > 0
    assert data.y.dtype == np.int64
    assert data.y.min() >= 0
    assert data.y.max() < len(data.classes)
    if data.x.dtype == np.uint8:
        assert data.mean == data.std == (0.5,) * data.x.shape[1]
    elif data.x.dtype == np.int32:
        assert 0 <= data.x.min() <= data.x.max() < data.vocabulary
    else:
        assert data.x.dtype == np.float32
        assert np.isfinite(data.x).all()
    if data.owner is not None:
        assert data.owner.shape == data.y.shape
        assert np.array_equal(np.unique(data.owner), np.arange(len(data.owners)))
    if data.official_test is not None:
        assert data.official_test.dtype == bool
        assert data.official_test.shape == data.y.shape
