"""Imports what PFLlib and FL-bench generate: the same clients, the same split, the same values.

PFLlib    NAME/train/0.npz, NAME/test/0.npz, ... each hold a pickled {"x": ..., "y": ...}, normalized already
FL-bench  NAME/partition.pkl has indices into data.npy and targets.npy, or into the public files beside it, which it
          normalizes when a run loads them
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...disk.files import new_folder
from ...errors import DataError, shorten
from ...memory import check_memory
from ...tasks.classification import Classification
from ..dataset import Source
from ..files import forbid_downloads, read_text
from ..pickles import PickledArray, read_pickle
from ..sources.cifar10 import CIFAR10
from ..sources.cifar100 import CIFAR100
from ..sources.fashion_mnist import FashionMNIST
from ..sources.mnist import MNIST
from .arrays import map_npy, read_header
from .description import PARTS, Preprocess, to_text
from .objects import StoredPiece, write_arrays

LARGEST = 4 << 30
"""bytes of one client's file, unpacked"""
MOST_CLASSES = 100_000
MOST_TOKENS = 10_000_000

Pair = tuple[NDArray[Any], NDArray[np.int64]]


def import_pfllib(folder: Path, out: Path) -> Path:
    """Write the clients of PFLlib's `folder` to the new folder `out`, and return its data.toml."""
    trains = [p for p in (folder / "train").glob("*.npz") if re.fullmatch(r"[0-9]{1,7}", p.stem)]
    if not trains:
        raise DataError(f"{folder} must have train/0.npz, test/0.npz, train/1.npz, ..., as PFLlib generates them.")
    pieces: list[StoredPiece] = []
    for path in sorted(trains, key=lambda p: int(p.stem)):
        for part, name in ((0, "train"), (2, "test")):
            x, y = _read_client(folder / name / path.name, letters="Shakespeare" in folder.absolute().name)
            if len(y):
                pieces.append(StoredPiece(path.stem, part, x, y))
            elif part == 0:
                raise DataError(f"{path} has no samples.")
            check_memory(2 * sum(p.x.nbytes for p in pieces), f"{folder}")
    return _write(pieces, _count_classes(folder / "config.json", pieces), out)


def _read_client(path: Path, letters: bool) -> Pair:
    """Samples as PFLlib gives them to its networks: tokens if they are texts or letters, else float32."""
    content = read_pickle(path, _read_object(path), "a client's samples and labels")
    x = content.get("x")
    y = content.get("y")
    if not isinstance(x, PickledArray) or not isinstance(y, PickledArray) or y.numbers is None:
        raise DataError(f"{path} must hold arrays 'x' and 'y'.")
    if not y.numbers.size:
        return np.empty((0, 1)), np.empty(0, np.int64)
    if x.numbers is None:
        samples = _read_texts(x, path)
    elif letters:
        samples = _check_tokens(x.numbers, path)
    else:
        samples = x.numbers.astype(np.float32)
    if samples.ndim < 2 or y.numbers.shape != (len(samples),) or y.numbers.dtype.kind not in "iu":
        shapes = f"x of shape {list(samples.shape)} and y of shape {list(y.numbers.shape)}, {y.numbers.dtype}"
        raise DataError(f"{path} has {shapes}, but must have a whole number in y for each sample in x.")
    return samples, y.numbers.astype(np.int64)


def _read_object(path: Path) -> bytes:
    """The pickle in a file that `np.savez(file, data=...)` wrote."""
    try:
        with zipfile.ZipFile(path) as bundle, bundle.open("data.npy") as file:
            shape, _, dtype = read_header(file)
            if shape != () or dtype.kind != "O":
                raise ValueError("its 'data' is not a dictionary")
            if bundle.getinfo("data.npy").file_size > LARGEST:
                raise ValueError(f"it unpacks to more than {LARGEST >> 30} GiB")
            return file.read(LARGEST)
    except Exception as error:  # hostile bytes make the parsers of archives and headers raise anything
        raise DataError(f"{path} can't be read as PFLlib's: {shorten(error)}.") from None


def _read_texts(x: PickledArray, path: Path) -> NDArray[np.int32]:
    """Rows of (tokens, length) as tokens; PFLlib has cut or padded all texts to one length."""
    texts = x.items[::2] if x.items and len(x.shape) == 2 and x.shape[1] == 2 else []
    lengths = {len(text) if isinstance(text, list) else -1 for text in texts}
    if len(lengths) != 1 or min(lengths) < 1 or not all(type(token) is int for text in texts for token in text):
        raise DataError(f"{path} has an 'x' of objects that are not texts: token numbers, as many in each.")
    return _check_tokens(np.array(texts, dtype=object), path)


def _check_tokens(tokens: NDArray[Any], path: Path) -> NDArray[np.int32]:
    if tokens.ndim != 2 or not ((tokens >= 0) & (tokens < MOST_TOKENS)).all():
        raise DataError(f"{path} has tokens that are not whole numbers from 0 to {MOST_TOKENS - 1:,}.")
    return tokens.astype(np.int32)


def _count_classes(config: Path, pieces: Sequence[StoredPiece]) -> int:
    """The number of classes in config.json, or else of those that occur."""
    highest = max(int(p.y.max(initial=0)) for p in pieces)
    lowest = min(int(p.y.min(initial=0)) for p in pieces)
    classes = highest + 1
    if config.is_file():
        try:
            classes = json.loads(read_text(config))["num_classes"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise DataError(f"{config} must be a JSON object with num_classes.") from None
    if type(classes) is not int or lowest < 0 or not max(highest, 1) < classes <= MOST_CLASSES:
        raise DataError(f"labels are from {lowest} to {highest}, but must be from 0 to {classes!r} - 1.")
    return classes


def _write(pieces: Sequence[StoredPiece], classes: int, out: Path) -> Path:
    """Write arrays that no run scales again, with all labels as classes, even those that do not occur."""
    tokens = pieces[0].x.dtype == np.int32
    words = {"texts": "tokens", "buckets": max(int(p.x.max(initial=1)) for p in pieces) + 1} if tokens else {}
    names = tuple(map(str, range(classes)))
    with new_folder(out) as home:
        d = write_arrays(pieces, home)
        preprocess = Preprocess(numbers="as they are", **words)
        d = replace(d, preprocess=preprocess, task=Classification.name, classes=names, label_type="int")
        (home / "data.toml").write_text(to_text(d, "."), "utf-8")
    return out / "data.toml"


SCALES: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "mnist": ((0.1307,), (0.3015,)),
    "fmnist": ((0.286,), (0.3205,)),
    "femnist": ((0.9637,), (0.155,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.201)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2009, 0.1984, 0.2023)),
    "synthetic": ((0.0,), (1.0,)),
}
"""mean and deviation of each channel by which FL-bench normalizes its data sets, by their names there"""
SOURCES: dict[str, type[Source]] = {"mnist": MNIST, "fmnist": FashionMNIST, "cifar10": CIFAR10, "cifar100": CIFAR100}
"""data sets whose public files FL-bench reads: training images first, then test images, as here"""


def import_fl_bench(folder: Path, out: Path) -> Path:
    """Write the clients of FL-bench's `folder` to the new folder `out`, and return its data.toml."""
    name = folder.absolute().name
    if name not in SCALES:
        raise DataError(
            f"{folder} holds a data set whose normalization is not known: it must be one of FL-bench's "
            f"{', '.join(SCALES)}."
        )
    indices = _read_partition(folder / "partition.pkl")
    x, y = _read_samples(folder, name)
    pieces: list[StoredPiece] = []
    for c, parts in enumerate(indices):
        for k, rows in enumerate(parts):
            if len(rows) and not 0 <= rows.min() <= rows.max() < len(y):
                raise DataError(f"{folder} has indices of client {c} that are not from 0 to {len(y) - 1}.")
            if len(rows):
                pieces.append(StoredPiece(str(c), k, x[rows], y[rows]))
        if not len(parts[0]):
            raise DataError(f"{folder} has no training samples for client {c}: generate it with --split sample.")
    if not pieces:
        raise DataError(f"{folder} has no clients.")
    return _write(pieces, int(y.max()) + 1, out)


def _read_partition(path: Path) -> list[list[NDArray[np.int64]]]:
    """For each client, the indices of its training, validation and test samples."""
    clients = read_pickle(path, what="a partition").get("data_indices")
    if not isinstance(clients, list) or not all(isinstance(parts, dict) for parts in clients):
        raise DataError(f"{path} must hold 'data_indices', a list with a dictionary for each client.")
    return [[_read_indices(parts.get(part, []), path) for part in PARTS] for parts in clients]


def _read_indices(value: Any, path: Path) -> NDArray[np.int64]:
    if isinstance(value, PickledArray) and value.numbers is not None:
        value = value.numbers
    elif isinstance(value, list) and all(type(i) is int and 0 <= i < 1 << 62 for i in value):
        value = np.array(value, np.int64)
    if not isinstance(value, np.ndarray) or value.ndim != 1 or (len(value) and value.dtype.kind not in "iu"):
        raise DataError(f"{path} has a client whose indices are not a list of whole numbers.")
    return value.astype(np.int64)


def _read_samples(folder: Path, name: str) -> Pair:
    """All samples, normalized as FL-bench does it, and their labels."""
    if (folder / "data.npy").exists():
        x = map_npy(folder / "data.npy")
        y = map_npy(folder / "targets.npy")
        x = x.reshape(-1, 1, 28, 28) if name == "femnist" and x.size % 784 == 0 else x
        if x.ndim < 2 or x.dtype.kind not in "biuf" or y.shape != (len(x),) or y.dtype.kind not in "iu" or not len(y):
            raise DataError(f"{folder} must have numbers in data.npy, and one whole number a sample in targets.npy.")
    elif name in SOURCES:
        try:
            with forbid_downloads():
                dataset = SOURCES[name]().load(folder)
        except DataError:
            files = f"the public files of {name} as torchvision unpacks them, or they are damaged"
            raise DataError(f"{folder} has neither data.npy nor {files}.") from None
        x = dataset.x
        y = dataset.y
    else:
        raise DataError(f"{folder} must have data.npy and targets.npy.")
    check_memory(12 * x.size, f"{folder}")
    mean, std = (np.array(values, np.float32).reshape(-1, *(1,) * (x.ndim - 2)) for values in SCALES[name])
    if len(mean) not in (1, x.shape[1]):
        raise DataError(f"{folder} has samples of shape {list(x.shape[1:])}, but {name} has {len(mean)} channels.")
    scaled = x.astype(np.float32) / np.float32(255 if x.max() > 1 else 1)
    return (scaled - mean) / std, y.astype(np.int64)
