"""The task, guessed from the target if not given, and targets in the type and shape that it needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...settings.options import TaskName
from .description import Description
from .findings import Report
from .readers.raw import Raw

MANY = 20
"""a target with more different integers than this is a quantity, if there is more than one per ten samples"""


@dataclass(frozen=True)
class Targets:
    task: TaskName
    guessed: str
    """why this task was guessed; empty if it was given"""
    y: NDArray[Any]
    """classification: int64 [n]; multilabel: float32 [n, labels] of 0 and 1; regression: float32 [n, targets];
    segmentation: int64 [n, height, width]"""
    classes: tuple[str, ...]
    """names of the classes, labels or targets"""


def targets(raw: Raw, d: Description, report: Report) -> Targets:
    """The targets of all samples; reports missing and unknown ones."""
    _report_missing(raw, d, report)
    task, why = (d.task, "") if d.task else _guess(raw, d)
    make = {"classification": _classes, "multilabel": _labels, "regression": _quantities, "segmentation": _masks}[task]
    y, names = make(raw, d, report)
    return Targets(task, why, y, d.names or names)


def _report_missing(raw: Raw, d: Description, report: Report) -> None:
    if raw.y is not None:
        return
    for k, codes in enumerate(raw.labels):
        for i in np.flatnonzero(codes < 0):
            report(raw.finding("error", "missing label", int(i), "the target is missing.", _column(d, k)))


def _guess(raw: Raw, d: Description) -> tuple[TaskName, str]:
    """The task, and why."""
    if raw.y is not None:
        if raw.y.ndim > 2:
            return "segmentation", "the target is an array for each sample"
        binary = bool(np.isin(raw.y, (0, 1)).all())
        return ("multilabel", "several columns of 0 and 1") if binary else ("regression", "several columns of numbers")
    if len(raw.labels) > 1:
        binary = all(set(cells) <= {"0", "1"} for cells in raw.cells)
        return ("multilabel", "several columns of 0 and 1") if binary else ("regression", "several target columns")
    cells = raw.cells[0]
    if any(isinstance(cell, tuple) for cell in cells):
        return "multilabel", "cells with several labels"
    numbers = [] if d.classes else _as_numbers(cells)
    if numbers and not all(n.is_integer() for n in numbers):
        return "regression", "the target has numbers with decimals"
    if len(numbers) > MANY and len(numbers) > len(raw) / 10:
        return "regression", f"the target has {len(numbers):,} different numbers"
    return "classification", f"the target has {len(cells):,} different values"


def _as_numbers(cells: list[Any]) -> list[float]:
    """All cells, or an empty list if one is not a finite number."""
    try:
        found = [float(cell) for cell in cells]
    except (ValueError, TypeError):
        return []
    return found if all(map(math.isfinite, found)) else []


def _classes(raw: Raw, d: Description, report: Report) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    if raw.y is not None or len(raw.labels) != 1:
        raise DataError("task is 'classification', but there are several targets: name one, or choose another task.")
    codes, cells = raw.labels[0], raw.cells[0]
    known = list(d.classes) or in_order(cells)
    numbers = _as_numbers(cells)
    if numbers and not d.classes and not all(n.is_integer() for n in numbers):
        i = int(np.flatnonzero(np.isin(codes, [k for k, n in enumerate(numbers) if not n.is_integer()]))[0])
        text = f'{cells[codes[i]]} is not a whole number, so it is not a class: choose task = "regression".'
        report(raw.finding("error", "float label", i, text, _column(d, 0)))
    place = {name: k for k, name in enumerate(known)}
    for i in np.flatnonzero(np.isin(codes, [k for k, cell in enumerate(cells) if cell not in place])):
        text = f"{cells[codes[i]]!r} is not one of the classes: {', '.join(known)}."
        report(raw.finding("error", "unknown label", int(i), text, _column(d, 0)))
    if len(known) < 2:
        raise DataError(f"the target has only one value, {known[0]!r}: there is nothing to predict." if known else NONE)
    table = np.array([place.get(cell, 0) for cell in cells] + [0], np.int64)  # the last entry: missing targets
    return table[codes], tuple(known)


NONE = "no sample has a target."


def _labels(raw: Raw, d: Description, report: Report) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    """One column of 0 and 1 for each label."""
    if raw.y is not None:
        names = d.classes or tuple(str(k) for k in range(raw.y.shape[1]))
        return _binary(raw, np.asarray(raw.y, np.float32), names, report), names
    if len(raw.labels) != 1:
        return _binary(raw, _numbers(raw, d, report), d.target, report), d.target
    cells = [cell if isinstance(cell, tuple) else (cell,) for cell in raw.cells[0]]
    known = list(d.classes) or in_order({label for cell in cells for label in cell})
    place = {name: k for k, name in enumerate(known)}
    table = np.zeros((len(cells) + 1, len(known)), np.float32)
    for k, cell in enumerate(cells):
        if strange := [label for label in cell if label not in place]:
            i = int(np.flatnonzero(raw.labels[0] == k)[0])
            text = f"{strange[0]!r} is not one of the labels: {', '.join(known)}."
            report(raw.finding("error", "unknown label", i, text, _column(d, 0)))
        table[k, [place[label] for label in cell if label in place]] = 1
    return table[raw.labels[0]], tuple(known)


def _binary(raw: Raw, y: NDArray[np.float32], names: tuple[str, ...], report: Report) -> NDArray[np.float32]:
    for i, k in np.argwhere(~np.isin(y, (0, 1)) & ~np.isnan(y)):
        text = f"{y[i, k]:g} is not 0 or 1, as every label must be."
        report(raw.finding("error", "unknown label", int(i), text, names[k]))
    return y


def _quantities(raw: Raw, d: Description, report: Report) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    if raw.y is not None:
        y = np.asarray(raw.y, np.float32)
        if y.ndim != 2:
            raise DataError(f"task is 'regression', but targets have the shape {list(y.shape[1:])}.")
        names = d.classes or tuple(f"target {k}" for k in range(y.shape[1]))
    else:
        y, names = _numbers(raw, d, report), d.target or ("target",)
    for i in np.flatnonzero(~np.isfinite(y).all(1)):
        if not any(codes[i] < 0 for codes in raw.labels) or raw.y is not None:
            report(raw.finding("error", "missing label", int(i), "the target is not a finite number."))
    for k, (low, high) in enumerate(d.target_range.pairs[: y.shape[1]] if d.target_range else ()):
        for i in np.flatnonzero((y[:, k] < np.float32(low)) | (y[:, k] > np.float32(high))):
            text = f"{y[i, k]:g} is outside target_range, which is {low:g} to {high:g}."
            report(raw.finding("warning", "outside target_range", int(i), text, names[k]))
    return y, names


def _numbers(raw: Raw, d: Description, report: Report) -> NDArray[np.float32]:
    """Each target column as numbers."""
    columns: list[NDArray[np.float64]] = []
    for k, (codes, cells) in enumerate(zip(raw.labels, raw.cells, strict=True)):
        table = np.full(len(cells) + 1, np.nan)
        first = dict(zip(*(a.tolist() for a in np.unique(codes, return_index=True)), strict=True))
        for j, cell in enumerate(cells):
            try:
                table[j] = float(cell)
            except (ValueError, TypeError):
                report(raw.finding("error", "not a number", first[j], f"{cell!r} is not a number.", _column(d, k)))
                table[j] = 0
        columns.append(table[codes])
    return np.stack(columns, axis=1).astype(np.float32)


def _masks(raw: Raw, d: Description, report: Report) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    if raw.y is None or raw.y.ndim != 3 or raw.y.dtype.kind not in "iub":
        raise DataError("task is 'segmentation', but targets are not masks: whole numbers [samples, height, width].")
    y = raw.y.astype(np.int64)
    if not d.classes and set(np.unique(y).tolist()) <= {0, 255}:  # the usual encoding of black and white
        y //= 255
    if y.shape[1:] != raw.x.shape[-2:]:
        raise DataError(
            f"masks have {y.shape[1]} x {y.shape[2]} pixels, but images {raw.x.shape[-2]} x {raw.x.shape[-1]}."
        )
    count = len(d.classes) or int(y.max()) + 1
    for i in np.flatnonzero((y < 0).any((1, 2)) | (y >= count).any((1, 2))):
        text = f"its mask has the value {int(y[i].max())}, but must have 0 to {count - 1}."
        report(raw.finding("error", "unknown label", int(i), text))
    return y, d.classes or tuple(map(str, range(count)))


def in_order(cells: Any) -> list[str]:
    """Sorted, numerically if all are numbers."""
    texts = sorted(map(str, cells))
    numbers = _as_numbers(texts)
    return [text for _, text in sorted(zip(numbers, texts, strict=True))] if numbers else texts


def _column(d: Description, k: int) -> str:
    return d.target[k] if k < len(d.target) else ""
