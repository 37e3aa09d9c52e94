"""What a model should say: targets from arrays or from the cells of files, in the type and shape that metrics take.

classification  int64 [n], numbers of classes        multilabel    float32 [n, labels] of 0 and 1
regression      float32 [n, quantities]              segmentation  int64 [n, height, width], numbers of classes
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.own.description import Description
from ..data.own.readers.values import cell_text, to_numbers
from ..errors import DataError

Where = Callable[[int], str]
"""names a sample in a message, by its number"""


def by_order(card: Mapping[str, Any], d: Description) -> dict[str, Any]:
    """The card of a model that knows its classes by number only, with their names as this data.toml lists them."""
    if not card["of"].get("numbered") or len(d.classes) != len(card["classes"]):
        return dict(card)
    return {**card, "reading": {**card["reading"], "classes": list(d.classes)}}


def expected(card: Mapping[str, Any], y: Any, where: Where, *, in_files: bool) -> NDArray[Any]:
    """The targets `y` of a model with this card; a class is written as in its files, or called by its name."""
    task, names = card["task"], list(card["classes"])
    y = np.asarray(y)
    if task == "classification":
        return _classes(y, *_places(card, in_files), where)
    if task == "segmentation":
        return _masks(y, len(names), tuple(card["inputs"]["shape"][1:]), where)
    found = y.reshape(-1, 1) if y.ndim == 1 and len(names) == 1 else y
    if found.ndim != 2 or found.shape[1] != len(names) or found.dtype.kind not in "biuf":
        said = f"{y.dtype} of shape {list(y.shape[1:])}"
        raise DataError(f"targets are {said}, but this model needs {len(names)} numbers a sample: {', '.join(names)}.")
    right = np.isin(found, (0, 1)) if task == "multilabel" else np.isfinite(found)
    for i, k in np.argwhere(~right)[:1]:
        must = "0 or 1" if task == "multilabel" else "a finite number"
        raise DataError(f"{where(int(i))}: {names[k]} is {found[i, k]:g}, but must be {must}.")
    return found.astype(np.float32)


def expected_cells(
    card: Mapping[str, Any], d: Description, cells: Sequence[NDArray[Any]], where: Where
) -> NDArray[Any] | None:
    """The same from the target columns of a table; None if there are none."""
    if not cells:
        return None
    if card["task"] == "multilabel" and len(cells) == 1:
        separator = d.separator or card["reading"].get("separator", "")
        return _label_sets(cells[0], separator, *_places(card, True), where)
    if card["task"] == "classification":
        return expected(card, cells[0], where, in_files=True)
    if card["task"] == "segmentation":
        raise DataError(f"{d.place} is a table, but masks must be images or an NPZ file with y.")
    names = card["classes"]

    def wrong(i: int, k: int) -> None:
        raise DataError(f"{where(i)}: {names[k]} is {cells[k][i]!r}, but must be a number.")

    numbers = [to_numbers(each, d.missing, lambda i, k=k: wrong(i, k)) for k, each in enumerate(cells)]
    return expected(card, np.stack(numbers, 1), where, in_files=True)


def _places(card: Mapping[str, Any], in_files: bool) -> tuple[dict[str, int], list[str]]:
    """The number of each class or label as it may be said, and how to say what is allowed."""
    names, reading = list(card["classes"]), card["reading"]
    written_so = list(reading.get("classes") or names) if reading else [str(k) for k in range(len(names))]
    known = written_so if in_files else names
    numbers = {} if reading else {str(k): k for k in range(len(names))}  # public data sets number their classes
    return numbers | {name: k for k, name in enumerate(known)}, known


def _classes(y: NDArray[Any], place: Mapping[str, int], known: list[str], where: Where) -> NDArray[np.int64]:
    if y.ndim != 1:
        raise DataError(f"targets have the shape {list(y.shape)}, but must be one class a sample.")
    found = np.array([place.get(cell_text(cell), -1) for cell in y.tolist()], np.int64)
    for i in np.flatnonzero(found < 0)[:1]:
        raise DataError(f"{where(int(i))}: {y.tolist()[i]!r} is not one of the classes: {', '.join(known[:20])}.")
    return found


def _label_sets(
    cells: NDArray[Any], separator: str, place: Mapping[str, int], known: list[str], where: Where
) -> NDArray[np.float32]:
    y = np.zeros((len(cells), len(known)), np.float32)
    for i, cell in enumerate(cells.tolist()):
        parts = cell if isinstance(cell, list | tuple) else str(cell).split(separator) if separator else [cell]
        for label in filter(None, map(cell_text, parts)):
            if label not in place:
                raise DataError(f"{where(i)}: {label!r} is not one of the labels: {', '.join(known[:20])}.")
            y[i, place[label]] = 1
    return y


def _masks(y: NDArray[Any], classes: int, size: tuple[int, ...], where: Where) -> NDArray[np.int64]:
    if y.dtype.kind not in "biu" or y.shape[1:] != size:
        said = f"{y.dtype} of shape {list(y.shape[1:])}"
        raise DataError(f"targets are {said}, but must be masks: whole numbers of shape {list(size)}.")
    y = y.astype(np.int64)
    if classes == 2 and y.size and np.isin(y, (0, 255)).all():  # the usual encoding of black and white
        y = y // 255
    for i in np.flatnonzero(((y < 0) | (y >= classes)).any((1, 2)))[:1]:
        raise DataError(f"{where(int(i))}: its mask has the value {y[i].max()}, but must have 0 to {classes - 1}.")
    return y
