"""Loads a user's own data as a `Dataset`: reads the files, guesses the task, and makes targets and parts.

The task is guessed from the target if it is not given; targets get the type and shape that it needs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...settings.options import TaskName
from ...tasks.base import TaskKind
from ...tasks.classification import Classification
from ...tasks.multilabel import Multilabel
from ...tasks.registry import kind_of
from ...tasks.regression import Regression
from ...tasks.segmentation import Segmentation
from ..dataset import Dataset, LabelType, cast_labels
from ..partition.base import group
from ..preprocessing import FeatureColumn, Preprocessing
from ..splits import parse_split, size_parts
from .arrays import read_arrays, read_npz
from .description import MISSING, Description
from .findings import LISTED, DataFinding, Report, as_passed, name_passed, raise_errors
from .images import has_masks, read_images
from .layout import Hashes, fingerprint
from .raw import Builder, Raw
from .tables import read_tables
from .values import Codes, DateError, cell_text, guess_label_type, parse_dates

MANY = 20
"""a target with more different integers than this is a quantity, if some are negative or there is more than one per ten
samples"""


class Loaded(NamedTuple):
    """The data as read from files, and as a `Dataset`."""

    raw: Raw
    dataset: Dataset


def load(d: Description, report: Report = raise_errors, known: Hashes | None = None) -> Loaded:
    """Read everything; raise the first error, unless `report` collects findings."""
    if d.sha256 and fingerprint(d, known) != d.sha256:
        raise DataError(f"{d.place} has changed: its sha256 no longer starts with {d.sha256[:12]}.")
    report = name_passed(d, report)
    raw = read_raw(d, report)
    _report_missing(raw, d, report)
    task, why = (d.task, "") if d.task else _guess_task(raw, d)
    y, names = _make_targets(kind_of(task), raw, d, report)
    classes = d.names or names
    recipe = recipe_of(raw, d)
    dataset = Dataset(
        raw.x,
        y,
        classes,
        owner=raw.owner,
        owners=raw.owners,
        vocabulary=recipe.vocabulary,
        notes=(f"task is {task}: {why}.",) if why else (),
        task=task,
        target_range=d.target_range,
        part=_assign_parts(raw, d, report),
        split=d.split.ratio,
        weight=_check_weights(raw, d, report),
        recipe=recipe,
        model=_choose_model(recipe, task),
        label_type=_choose_label_type(raw, classes, d) if kind_of(task).one_class else "str",
    )
    return Loaded(raw, dataset.with_range(None))


def _choose_label_type(raw: Raw, classes: Sequence[str], d: Description) -> LabelType:
    """The given type, or that of the target; classes with other names are always text."""
    if d.names not in ((), d.classes):
        return "str"
    label_type = d.label_type or (guess_label_type(classes) if d.format == "csv" else raw.label_type)
    try:
        cast_labels(classes, label_type)
    except ValueError:
        known = ", ".join(classes[:20])
        raise DataError(f"label_type is {label_type!r}, but the classes are {known}.") from None
    return label_type


def read_raw(d: Description, report: Report) -> Raw:
    """The samples as the files have them."""
    reader = {"images": read_images, "npz": read_npz, "arrays": read_arrays}.get(d.format, read_tables)
    columns = d.target if d.is_table else () if has_masks(d) else ("",)  # arrays have y, folders of images are classes
    labels = [Codes(_list_missing(d), d.separator) for _ in columns]
    raw = reader(d, Builder(report, Codes(("",)), labels))
    if not len(raw):
        raise DataError(f"{d.place} has no samples that can be read.")
    return raw


def _list_missing(d: Description) -> set[str]:
    """Words that are not classes; where files have types, "None" and "NA" are ordinary names."""
    words = set(d.missing) if d.format == "csv" else {"", *d.missing} - {*MISSING[1:]}
    return words - set(d.classes)


def recipe_of(raw: Raw, d: Description) -> Preprocessing:
    f = d.features
    columns: tuple[FeatureColumn, ...] = ()
    if raw.form == "table":
        columns = (
            *(FeatureColumn(name, "number") for name in f.number),
            *(FeatureColumn(name, "category") for name in f.category),
            *(FeatureColumn(name, "text", d.preprocess.length) for name in f.text),
        )
    return Preprocessing(raw.form, tuple(raw.x.shape[1:]), d.preprocess, columns, raw.categories)


def _choose_model(recipe: Preprocessing, task: TaskName) -> str:
    """The default model for such samples."""
    if kind_of(task).per_pixel:
        return "fcn"
    if recipe.vocabulary:
        return "fasttext"
    return "cnn" if recipe.form == "image" and min(recipe.shape[1:]) >= 16 else "mlp"


def _assign_parts(raw: Raw, d: Description, report: Report) -> NDArray[np.int8] | None:
    """The part of each sample, if the data defines it."""
    part = _split_by_time(raw, d, report) if raw.time is not None else raw.part
    if part is None:
        if d.split.by == "files":
            text = "split.by is 'files', but no file is named train, val or test."
            report(DataFinding("error", "unknown part", text, d.place))
        return None
    trained = np.bincount(raw.owner[part == 0], minlength=len(raw.owners))
    for c in np.flatnonzero(trained == 0):
        text = "it has no training samples."
        report(DataFinding("error", "no training samples", text, d.place, client=raw.owners[c]))
    return part


def _check_weights(raw: Raw, d: Description, report: Report) -> NDArray[np.float32] | None:
    """The weights, if there are any; one that is missing or negative is an error."""
    if raw.weight is None:
        return None
    for i in np.flatnonzero(~((raw.weight >= 0) & np.isfinite(raw.weight.astype(np.float32)))).tolist():
        text = f"its weight is {raw.weight[i]:g}, but must be a finite number that is not negative."
        report(raw.make_finding("error", "wrong weight", i, text, d.weight))
    return raw.weight.astype(np.float32)


def _split_by_time(raw: Raw, d: Description, report: Report) -> NDArray[np.int8]:
    """Each client's earliest samples are for training, its latest for test."""
    assert raw.time is not None
    when = _read_times(raw, raw.time, d, report)
    part = np.zeros(len(raw), np.int8)
    split = parse_split(d.split.ratio)
    for indices in group(raw.owner, len(raw.owners)):
        order = indices[np.argsort(when[indices], kind="stable")]
        part[order] = np.repeat(np.arange(3, dtype=np.int8), size_parts(len(order), split))
    return part


def _read_times(raw: Raw, cells: NDArray[Any], d: Description, report: Report) -> NDArray[np.float64]:
    """Numbers as they are, dates as seconds; a cell that is neither is an error."""
    texts = [cell_text(cell) if cell is not None and cell == cell else "" for cell in cells.tolist()]
    for i, text in enumerate(texts):
        if text in d.missing:
            report(raw.make_finding("error", "missing time", i, "the cell is empty.", d.split.column))
    present: dict[str, int] = {}
    for i, text in enumerate(texts):
        if text not in d.missing:
            present.setdefault(text, i)
    numbers = [] if d.split.format or any(re.match(r"0\d", text) for text in present) else _as_numbers([*present])
    try:
        when = dict(zip(present, numbers, strict=True)) if numbers else parse_dates([*present], d.split.format)
    except DateError as error:
        report(raw.make_finding("error", "not a date", present[error.text], str(error), d.split.column))
        when = {}
    return np.array([when.get(text, 0.0) for text in texts])


Targets = tuple[NDArray[Any], tuple[str, ...]]
"""the targets of all samples, and the names of classes, labels or quantities. classification: int64 [n]; multilabel:
float32 [n, labels] of 0 and 1; regression: float32 [n, targets]; segmentation: int64 [n, height, width]"""


def _make_targets(kind: TaskKind, raw: Raw, d: Description, report: Report) -> Targets:
    """In the type and shape of this kind of task; unknown ones are reported."""
    if kind.quantitative:
        return _make_quantities(raw, d, report)
    if kind.per_pixel:
        return _make_masks(raw, d, report)
    return _make_classes(raw, d, report) if kind.exclusive else _make_labels(raw, d, report)


def _report_missing(raw: Raw, d: Description, report: Report) -> None:
    if raw.y is not None:
        return
    for k, codes in enumerate(raw.labels):
        missing = np.flatnonzero(codes < 0).tolist()
        if missing:
            first, *others = [raw.make_finding("error", "missing label", i, "", _column_of(d, k)) for i in missing]
            text = "the target is missing" + ", or is a word in missing that is not in classes" * (d.format == "csv")
            report(replace(first, text=f"{text}{_list_others(first, others, d)}."))


def _list_others(first: DataFinding, others: Sequence[DataFinding], d: Description) -> str:
    """More rows with the same problem, as the user counts them."""
    here = [f for f in others if (f.file, f.client) == (first.file, first.client)]
    rows = [str(row) for f in here[:LISTED] if (row := as_passed(d, f).row) is not None]
    listed = f", and in rows {', '.join(rows)}{', ...' if len(here) > len(rows) else ''}" if rows else ""
    return f"{listed} ({len(others) + 1:,} in all)" if others else ""


def _guess_task(raw: Raw, d: Description) -> tuple[TaskName, str]:
    """The task, and why."""
    if raw.y is not None:
        if raw.y.ndim > 2:
            return Segmentation.name, "the target is an array for each sample"
        if np.isin(raw.y, (0, 1)).all():
            return Multilabel.name, "several columns of 0 and 1"
        return Regression.name, "several columns of numbers"
    if len(raw.labels) > 1:
        if all(set(cells) <= {"0", "1"} for cells in raw.cells):
            return Multilabel.name, "several columns of 0 and 1"
        return Regression.name, "several target columns"
    cells = raw.cells[0]
    if any(isinstance(cell, tuple) for cell in cells):
        return Multilabel.name, "cells with several labels"
    numbers = [] if d.classes else _as_numbers(cells)
    if numbers and not all(n.is_integer() for n in numbers):
        return Regression.name, "the target has numbers with decimals"
    if len(numbers) > MANY and (len(numbers) > len(raw) / 10 or min(numbers) < 0):
        return Regression.name, f"the target has {len(numbers):,} different numbers"
    hint = '; task = "regression" would predict them as quantities' if len(numbers) > MANY else ""
    return Classification.name, f"the target has {len(cells):,} different values{hint}"


def _as_numbers(cells: list[Any]) -> list[float]:
    """All cells, or an empty list if one is not a finite number."""
    try:
        numbers = [float(cell) for cell in cells]
    except (ValueError, TypeError):
        return []
    return numbers if all(map(math.isfinite, numbers)) else []


def _make_classes(raw: Raw, d: Description, report: Report) -> Targets:
    if raw.y is not None or len(raw.labels) != 1:
        raise DataError("task is 'classification', but there are several targets: name one, or choose another task.")
    codes = raw.labels[0]
    cells = raw.cells[0]
    known = list(d.classes) or sort_classes(cells)
    numbers = _as_numbers(cells)
    if numbers and not d.classes and not all(n.is_integer() for n in numbers):
        i = int(np.flatnonzero(np.isin(codes, [k for k, n in enumerate(numbers) if not n.is_integer()]))[0])
        text = f'{cells[codes[i]]} is not a whole number, so it is not a class: choose task = "{Regression.name}".'
        report(raw.make_finding("error", "float label", i, text, _column_of(d, 0)))
    place = {name: k for k, name in enumerate(known)}
    for i in np.flatnonzero(np.isin(codes, [k for k, cell in enumerate(cells) if cell not in place])):
        text = f"{cells[codes[i]]!r} is not one of the classes: {', '.join(known)}."
        report(raw.make_finding("error", "unknown label", int(i), text, _column_of(d, 0)))
    if len(known) < 2:
        raise DataError(
            f"the target has only one value, {known[0]!r}: there is nothing to predict."
            if known
            else "no sample has a target."
        )
    table = np.array([place.get(cell, 0) for cell in cells] + [0], np.int64)  # the last entry: missing targets
    return table[codes], tuple(known)


def _make_labels(raw: Raw, d: Description, report: Report) -> Targets:
    """One column of 0 and 1 for each label."""
    if raw.y is not None:
        names = d.classes or tuple(str(k) for k in range(raw.y.shape[1]))
        return _check_binary(raw, np.asarray(raw.y, np.float32), names, report), names
    if len(raw.labels) != 1:
        return _check_binary(raw, _read_numbers(raw, d, report), d.target, report), d.target
    cells = [cell if isinstance(cell, tuple) else (cell,) for cell in raw.cells[0]]
    known = list(d.classes) or sort_classes({label for cell in cells for label in cell})
    place = {name: k for k, name in enumerate(known)}
    table = np.zeros((len(cells) + 1, len(known)), np.float32)
    for k, cell in enumerate(cells):
        if strange := [label for label in cell if label not in place]:
            i = int(np.flatnonzero(raw.labels[0] == k)[0])
            text = f"{strange[0]!r} is not one of the labels: {', '.join(known)}."
            report(raw.make_finding("error", "unknown label", i, text, _column_of(d, 0)))
        table[k, [place[label] for label in cell if label in place]] = 1
    return table[raw.labels[0]], tuple(known)


def _check_binary(raw: Raw, y: NDArray[np.float32], names: tuple[str, ...], report: Report) -> NDArray[np.float32]:
    for i, k in np.argwhere(~np.isin(y, (0, 1)) & ~np.isnan(y)):
        text = f"{y[i, k]:g} is not 0 or 1, as every label must be."
        report(raw.make_finding("error", "unknown label", int(i), text, names[k]))
    return y


def _make_quantities(raw: Raw, d: Description, report: Report) -> Targets:
    if raw.y is not None:
        y = np.asarray(raw.y, np.float32)
        if y.ndim != 2:
            raise DataError(f"task is 'regression', but targets have the shape {list(y.shape[1:])}.")
        names = d.classes or tuple(f"target {k}" for k in range(y.shape[1]))
    else:
        y = _read_numbers(raw, d, report)
        names = d.target or ("target",)
    for i in np.flatnonzero(~np.isfinite(y).all(1)):
        if not any(codes[i] < 0 for codes in raw.labels) or raw.y is not None:
            report(raw.make_finding("error", "missing label", int(i), "the target is not a finite number."))
    for k, (low, high) in enumerate(d.target_range.pairs[: y.shape[1]] if d.target_range else ()):
        for i in np.flatnonzero((y[:, k] < np.float32(low)) | (y[:, k] > np.float32(high))):
            text = f"{y[i, k]:g} is outside target_range, which is {low:g} to {high:g}."
            report(raw.make_finding("warning", "outside target_range", int(i), text, names[k]))
    return y, names


def _read_numbers(raw: Raw, d: Description, report: Report) -> NDArray[np.float32]:
    columns: list[NDArray[np.float64]] = []
    for k, (codes, cells) in enumerate(zip(raw.labels, raw.cells, strict=True)):
        table = np.full(len(cells) + 1, np.nan)
        first = dict(zip(*(a.tolist() for a in np.unique(codes, return_index=True)), strict=True))
        for j, cell in enumerate(cells):
            try:
                table[j] = float(cell)
            except (ValueError, TypeError):
                report(
                    raw.make_finding("error", "not a number", first[j], f"{cell!r} is not a number.", _column_of(d, k))
                )
                table[j] = 0
        columns.append(table[codes])
    return np.stack(columns, axis=1).astype(np.float32)


def _make_masks(raw: Raw, d: Description, report: Report) -> Targets:
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
        report(raw.make_finding("error", "unknown label", int(i), text))
    return y, d.classes or tuple(map(str, range(count)))


def sort_classes(cells: Any) -> list[str]:
    """Sorted, numerically if all are numbers."""
    texts = sorted(map(str, cells))
    numbers = _as_numbers(texts)
    return [text for _, text in sorted(zip(numbers, texts, strict=True))] if numbers else texts


def _column_of(d: Description, k: int) -> str:
    return d.target[k] if k < len(d.target) else ""
