"""Samples as read: features as numbers, targets as written in the files, and the location of each sample.

Arrays may exceed memory: they grow in a mapped file, or stay in the files that a user mapped them from.
"""

from __future__ import annotations

import re
import tempfile
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...disk.files import read_json
from ...errors import DataError, RunError, shorten
from ..dataset import LabelType
from .description import PARTS
from .findings import DataFinding, Report
from .values import Codes

Form = Literal["table", "tokens", "image", "array"]


class Rows(NamedTuple):
    """Where consecutive samples come from."""

    start: int
    """the number of the first one in the data set"""
    file: Path | None
    """None: they were passed in Python"""
    lines: NDArray[np.int64] | None
    """their rows in the file, as a user counts; None: the file has no rows"""


@dataclass(frozen=True)
class Raw:
    """All samples of a data set, from one reader."""

    form: Form
    x: NDArray[Any]
    """table: float64 [n, columns], NaN if missing, categories as codes; tokens, images and arrays unchanged"""
    labels: tuple[NDArray[np.int64], ...]
    """for each target column, [n] the code of each sample's cell; -1 if missing"""
    cells: tuple[list[Any], ...]
    """what these codes stand for"""
    y: NDArray[Any] | None
    """targets that are arrays: [n, targets], or masks [n, height, width]"""
    owner: NDArray[np.int64]
    owners: tuple[str, ...]
    part: NDArray[np.int8] | None
    """[n] 0, 1, 2 for training, validation, test, if the data says so"""
    rows: Sequence[Rows]
    time: NDArray[Any] | None = None
    """[n] sort keys of each client's samples"""
    categories: Mapping[str, list[str]] = field(default_factory=dict[str, list[str]])
    """for each category column, what its codes stand for"""
    weight: NDArray[np.float64] | None = None
    """[n] of each sample in the loss of training"""
    label_type: LabelType = "str"
    """type of the target, if it is a single column"""

    def __len__(self) -> int:
        return len(self.owner)

    def make_finding(
        self, level: Literal["error", "warning"], kind: str, i: int, text: str, column: str = ""
    ) -> DataFinding:
        start, file, lines = self.rows[bisect_right(self.rows, i, key=lambda rows: rows.start) - 1]
        row = None if lines is None else int(lines[i - start])
        part = ""
        if file is None:  # rows of an array that was passed count from 0 in each client's part
            before = self.owner[:i] == self.owner[i]
            if self.part is not None:
                before &= self.part[:i] == self.part[i]
                part = PARTS[self.part[i]]
            row = int(before.sum())
        return DataFinding(level, kind, text, file, row, column, self.owners[self.owner[i]], part)


class Builder:
    """Collects blocks of samples into a `Raw`."""

    def __init__(self, report: Report, clients: Codes, labels: Sequence[Codes]) -> None:
        self.report = report
        self.clients = clients
        self.labels = labels
        self.n = 0
        self._rows: list[Rows] = []
        self._x = GrowingArray()
        self._y: list[NDArray[Any]] = []
        self._labels: list[list[NDArray[np.int64]]] = [[] for _ in labels]
        self._owner: list[NDArray[np.int64]] = []
        self._part: list[NDArray[np.int8]] = []
        self._time: list[NDArray[Any]] = []
        self._weight: list[NDArray[np.float64]] = []
        self._shapes: dict[str, tuple[tuple[int, ...], Any]] = {}

    def has_same_shape(self, what: str, x: NDArray[Any], file: Path, client: str) -> bool:
        """Whether the samples have the same shape and type as before; if not, an error is reported."""
        known = self._shapes.setdefault(what, (x.shape[1:], x.dtype))
        if (x.shape[1:], x.dtype) != known:
            before = f"those before are {known[1]} of shape {list(known[0])}."
            text = f"its {what} are {x.dtype} of shape {list(x.shape[1:])}, but {before}"
            self.report(DataFinding("error", "mixed shapes", text, file, client=client))
        return (x.shape[1:], x.dtype) == known

    def add(
        self,
        file: Path,
        lines: NDArray[np.int64] | None,
        x: NDArray[Any],
        owner: NDArray[np.int64],
        *,
        labels: Sequence[NDArray[np.int64]] = (),
        y: NDArray[Any] | None = None,
        part: NDArray[np.int8] | None = None,
        time: NDArray[Any] | None = None,
        weight: NDArray[np.float64] | None = None,
    ) -> None:
        self._rows.append(Rows(self.n, file, lines))
        self.n += len(x)
        self._x.add(x)
        self._owner.append(owner)
        for kept, codes in zip(self._labels, labels, strict=True):
            kept.append(codes)
        for into, values in ((self._y, y), (self._part, part), (self._time, time)):
            if values is not None:
                into.append(values)
        if weight is not None:
            self._weight.append(weight)

    def build(self, form: Form, categories: Mapping[str, list[str]]) -> Raw:
        return Raw(
            form,
            self._x.array(),
            tuple(np.concatenate([*each, np.empty(0, np.int64)]) for each in self._labels),
            tuple(codes.list_values() for codes in self.labels),
            np.concatenate(self._y) if self._y else None,
            np.concatenate([*self._owner, np.empty(0, np.int64)]),
            tuple(self.clients.list_values()),
            np.concatenate(self._part) if self._part else None,
            self._rows,
            np.concatenate(self._time) if self._time else None,
            categories,
            np.concatenate(self._weight) if self._weight else None,
            self.labels[0].label_type() if len(self.labels) == 1 else "str",
        )


LARGE = 64 << 20
"""bytes beyond which an array moves to a memory-mapped file, so that only what is used is read.
TMPDIR sets the folder of these files; if /tmp is in memory, point it to a disk."""
REFERENCES = "x.json"
"""instead of x.npy: the locations of arrays that were too large to copy"""


class GrowingArray:
    """Blocks of rows that become one array."""

    def __init__(self) -> None:
        self._blocks: list[NDArray[Any]] = []
        self._file: IO[bytes] | None = None
        self._rows = 0
        self._bytes = 0

    def add(self, block: NDArray[Any]) -> None:
        """Append rows, of the same shape and type as before."""
        self._rows += len(block)
        self._bytes += block.nbytes
        self._blocks.append(np.ascontiguousarray(block))
        if self._bytes > LARGE:
            self._file = self._file or tempfile.TemporaryFile()  # noqa: SIM115 (open until `array`)
            for each in self._blocks:
                self._file.write(each.data if each.size else b"")
            self._blocks = [block[:0]]

    def array(self) -> NDArray[Any]:
        """All rows, in memory or mapped from a file that is deleted with the array."""
        if self._file is None:
            return np.concatenate(self._blocks) if self._blocks else np.empty((0, 0))
        like = self._blocks[0]
        with self._file as file:  # the map stays valid
            file.flush()
            return np.memmap(file, like.dtype, "r", shape=(self._rows, *like.shape[1:]))


def map_empty(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """An empty array in a file that is deleted with it."""
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, dtype, "w+", shape=shape)


def locate_array(x: NDArray[Any]) -> dict[str, Any] | None:
    """The file that a mapped array lies in, and where; None if it is in memory or has gaps."""
    root: Any = x
    while isinstance(root.base, np.ndarray):
        root = root.base
    if not isinstance(root, np.memmap) or not root.filename or root.mode == "c" or not x.flags.c_contiguous:
        return None  # "c": changes are in memory only
    root.flush()
    start = x.__array_interface__["data"][0] - root.__array_interface__["data"][0] + root.offset
    return {"file": str(Path(root.filename).absolute()), "offset": start, "type": x.dtype.str, "shape": list(x.shape)}


def list_referenced_files(home: Path) -> list[str]:
    return list(dict.fromkeys(each.file for each in _read_locations(home)))


class _Reference(NamedTuple):
    file: str
    offset: int
    type: str
    shape: list[int]


def _read_locations(home: Path) -> list[_Reference]:
    """The locations that `reference` wrote: nothing else may become a type or a shape."""
    path = home / REFERENCES
    try:
        references = [_Reference(**each) for each in read_json(path)]
    except (TypeError, RunError) as error:
        raise DataError(f"the arrays of {path} can't be read: {shorten(error)}.") from None
    for r in references:
        numbers = [r.offset, *r.shape] if isinstance(r.shape, list) and len(r.shape) > 1 else [-1]
        if not all(type(n) is int and 0 <= n < 1 << 62 for n in numbers) or not isinstance(r.file, str):
            raise DataError(f"the arrays of {path} can't be read: one has no file, offset or shape.")
        if not isinstance(r.type, str) or not re.fullmatch(r"[<>|][biuf]\d", r.type):
            raise DataError(f"the arrays of {path} can't be read: {r.type!r} is not a type of numbers.")
    if not references or len({tuple(r.shape[1:]) for r in references}) > 1:
        raise DataError(f"the arrays of {path} can't be read: there must be some, with samples of one shape.")
    return references


def read_references(home: Path) -> NDArray[Any]:
    """All of these arrays as one; only what is used is read."""
    try:
        parts = [np.memmap(r.file, np.dtype(r.type), "r", r.offset, tuple(r.shape)) for r in _read_locations(home)]
    except (OSError, ValueError, OverflowError, TypeError) as error:
        raise DataError(f"the arrays of {home / REFERENCES} can't be read: {error}.") from None
    return JoinedArrays(parts)  # pyright: ignore[reportReturnType] # as much of an array as its users need


class JoinedArrays:
    """Arrays in files as if they were one array, in the type that networks take."""

    def __init__(self, parts: Sequence[NDArray[Any]]) -> None:
        self._parts = parts
        self._ends = np.cumsum([len(part) for part in parts])
        self.dtype = input_type(parts[0].dtype)
        self.shape = (int(self._ends[-1]), *parts[0].shape[1:])
        self.ndim = len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        """A slice of rows, or those with these numbers."""
        i = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else np.asarray(rows)
        samples = np.empty((len(i), *self.shape[1:]), self.dtype)
        which = np.searchsorted(self._ends, i, side="right")
        for k in np.unique(which):
            mine = which == k
            samples[mine] = self._parts[k][i[mine] - (self._ends[k] - len(self._parts[k]))]
        return samples


def input_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """uint8 stays uint8 (images), other integers become int32 (tokens), the rest float32."""
    return np.dtype(np.uint8 if dtype == np.uint8 else np.int32 if dtype.kind in "iu" else np.float32)
