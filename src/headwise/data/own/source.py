"""Loads a user's own data as a `Dataset`, with its targets and parts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...settings.options import TaskName
from ..dataset import Dataset
from ..partition.base import group
from ..preprocessing import FeatureColumn, Preprocessing
from ..splits import parse_split, part_sizes
from .description import Description
from .findings import DataFinding, Report, strictly
from .hashes import Hashes, fingerprint
from .passed import naming_passed
from .readers.raw import Raw
from .readers.reading import read_raw
from .readers.values import to_numbers
from .targets import Targets, targets


class Loaded(NamedTuple):
    """The data as read from files, and as a `Dataset`."""

    raw: Raw
    targets: Targets
    dataset: Dataset


def load(d: Description, report: Report = strictly, known: Hashes | None = None) -> Loaded:
    """Read everything; raise the first error, unless `report` collects findings."""
    if d.sha256 and fingerprint(d, known) != d.sha256:
        raise DataError(f"{d.place} has changed: its sha256 no longer starts with {d.sha256[:12]}.")
    report = naming_passed(d, report)
    raw = read_raw(d, report)
    found = targets(raw, d, report)
    recipe = recipe_of(raw, d)
    dataset = Dataset(
        raw.x,
        found.y,
        found.classes,
        owner=raw.owner,
        owners=raw.owners,
        vocabulary=recipe.vocabulary,
        notes=(f"task is {found.task}: {found.guessed}.",) if found.guessed else (),
        task=found.task,
        target_range=d.target_range,
        part=_parts(raw, d, report),
        split=d.split.ratio,
        recipe=recipe,
        model=_model(recipe, found.task),
    )
    return Loaded(raw, found, dataset.with_range(None))


def recipe_of(raw: Raw, d: Description) -> Preprocessing:
    f, columns = d.features, tuple[FeatureColumn, ...]()
    if raw.form == "table":
        columns = (
            *(FeatureColumn(name, "number") for name in f.number),
            *(FeatureColumn(name, "category") for name in f.category),
            *(FeatureColumn(name, "text", d.preprocess.length) for name in f.text),
        )
    return Preprocessing(raw.form, tuple(raw.x.shape[1:]), d.preprocess, columns, raw.categories)


def _model(recipe: Preprocessing, task: TaskName) -> str:
    """The default model for such samples."""
    if task == "segmentation":
        return "fcn"
    if recipe.vocabulary:
        return "fasttext"
    return "cnn" if recipe.form == "image" and min(recipe.shape[1:]) >= 16 else "mlp"


def _parts(raw: Raw, d: Description, report: Report) -> NDArray[np.int8] | None:
    """The part of each sample, if the data says so."""
    part = _by_time(raw, d, report) if raw.time is not None else raw.part
    if part is None:
        if d.split.by == "files":
            report(
                DataFinding(
                    "error", "unknown part", "split.by is 'files', but no file is named train, val or test.", d.place
                )
            )
        return None
    trained = np.bincount(raw.owner[part == 0], minlength=len(raw.owners))
    for c in np.flatnonzero(trained == 0):
        report(
            DataFinding("error", "no training samples", "it has no training samples.", d.place, client=raw.owners[c])
        )
    return part


def _by_time(raw: Raw, d: Description, report: Report) -> NDArray[np.int8]:
    """Each client's earliest samples are for training, its latest for test."""
    assert raw.time is not None
    when, bad = raw.time, list[int]()
    if when.dtype.kind not in "iuf":
        texts = [str(cell) if cell is not None else "" for cell in when.tolist()]
        numbers = to_numbers(np.array(texts, dtype=object), d.missing, bad.append)
        when = np.array(texts) if bad else numbers  # ISO dates sort correctly as strings: 2024-01-31
    gone = np.isin(when, d.missing) if when.dtype.kind == "U" else np.isnan(when.astype(np.float64))
    for i in np.flatnonzero(gone):
        report(raw.finding("error", "missing time", int(i), "the cell is empty.", d.split.column))
    part = np.zeros(len(raw), np.int8)
    split = parse_split(d.split.ratio)
    for indices in group(raw.owner, len(raw.owners)):
        order = indices[np.argsort(when[indices], kind="stable")]
        part[order] = np.repeat(np.arange(3, dtype=np.int8), part_sizes(len(order), split))
    return part
