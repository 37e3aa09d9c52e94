"""Samples as read: features as numbers, targets as written in the files, and the location of each sample."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ...dataset import LabelType
from ..description import PARTS
from ..findings import DataFinding, Report
from .large import GrowingArray
from .values import Codes

Form = Literal["table", "tokens", "image", "array"]


class Rows(Protocol):
    """A block of samples that knows where each came from."""

    @property
    def file(self) -> Path | None:
        """The file or folder they are in; None if they were passed in Python."""
        ...

    def row(self, i: int) -> int | None:
        """The row number of the i-th sample in the file."""
        ...


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
    time: NDArray[Any] | None
    """[n] what to order each client's samples by"""
    categories: Mapping[str, list[str]]
    """for each category column, what its codes stand for"""
    starts: list[int]
    rows: list[Rows]
    label_type: LabelType = "str"
    """of the target, if there is one column of it"""

    def __len__(self) -> int:
        return len(self.owner)

    def finding_at(
        self, level: Literal["error", "warning"], kind: str, i: int, text: str, column: str = ""
    ) -> DataFinding:
        """A finding about the i-th sample."""
        block = bisect_right(self.starts, i) - 1
        rows = self.rows[block]
        row = rows.row(i - self.starts[block])
        part = PARTS[self.part[i]] if self.part is not None and rows.file is None else ""
        return DataFinding(level, kind, text, rows.file, row, column, self.owners[self.owner[i]], part)


@dataclass
class Builder:
    """Collects blocks of samples into a `Raw`."""

    report: Report
    clients: Codes
    labels: list[Codes] = field(default_factory=list[Codes])
    starts: list[int] = field(default_factory=list[int])
    rows: list[Rows] = field(default_factory=list[Rows])
    n: int = 0

    def __post_init__(self) -> None:
        self._x = GrowingArray()
        self._y: list[NDArray[Any]] = []
        self._labels: list[list[NDArray[np.int64]]] = [[] for _ in self.labels]
        self._owner: list[NDArray[np.int64]] = []
        self._part: list[NDArray[np.int8]] = []
        self._time: list[NDArray[Any]] = []
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
        rows: Rows,
        x: NDArray[Any],
        owner: NDArray[np.int64],
        *,
        labels: list[NDArray[np.int64]] | None = None,
        y: NDArray[Any] | None = None,
        part: NDArray[np.int8] | None = None,
        time: NDArray[Any] | None = None,
    ) -> None:
        self.starts.append(self.n)
        self.rows.append(rows)
        self.n += len(x)
        self._x.add(x)
        self._owner.append(owner)
        for kept, codes in zip(self._labels, labels or [], strict=True):
            kept.append(codes)
        for into, values in ((self._y, y), (self._part, part), (self._time, time)):
            if values is not None:
                into.append(values)

    def build(self, form: Form, categories: Mapping[str, list[str]]) -> Raw:
        return Raw(
            form,
            self._x.array(),
            tuple(np.concatenate([*each, np.empty(0, np.int64)]) for each in self._labels),
            tuple(codes.seen() for codes in self.labels),
            np.concatenate(self._y) if self._y else None,
            np.concatenate([*self._owner, np.empty(0, np.int64)]),
            tuple(self.clients.seen()),
            np.concatenate(self._part) if self._part else None,
            np.concatenate(self._time) if self._time else None,
            categories,
            self.starts,
            self.rows,
            self.labels[0].label_type() if len(self.labels) == 1 else "str",
        )
