"""Fitted preprocessing as JSON, saved with a model and applied to new samples later."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...settings.fields import build, dump
from ..own.description import MISSING, Preprocess
from ..own.findings import strictly
from ..own.readers.pictures import Pictures
from ..own.readers.values import BAG, Hashing, to_numbers, written
from .fitting import FeatureColumn, Fitted, Preprocessing

FEW = 5
"""unknown categories that are named"""
Unknown = Counter[tuple[str, str]]
"""how often each category that was not there in training occurs, by column and category"""


class CellError(DataError):
    """A cell that can't be used: its row, counted from 0, and what is wrong."""

    def __init__(self, row: int, said: str) -> None:
        super().__init__(f"row {row}, {said}")
        self.row, self.said = row, said


def plain(fitted: Fitted) -> dict[str, Any]:
    """Plain values for JSON; if clients differ, take `Fitted.of` one client first."""
    r = fitted.recipe
    return {
        "form": r.form,
        "shape": list(r.shape),
        "options": dump(r.options),
        "columns": [dump(c) for c in r.columns],
        "mean": fitted.mean.tolist(),
        "std": fitted.std.tolist(),
        "fill": fitted.fill.tolist(),
        "flags": fitted.flags.tolist(),
        "values": {name: list(values) for name, values in fitted.values.items()},
    }


def from_plain(state: Mapping[str, Any]) -> Fitted:
    """The inverse of `plain`; category codes become their positions among the inputs."""
    columns = tuple(build(FeatureColumn, c) for c in state["columns"])
    values = {name: tuple(each) for name, each in state["values"].items()}
    recipe = Preprocessing(state["form"], tuple(state["shape"]), build(Preprocess, state["options"]), columns, values)
    rows = len(state["mean"])
    mean, std, fill = (np.array(state[k], np.float64).reshape(rows, recipe.scaled) for k in ("mean", "std", "fill"))
    return Fitted(recipe, mean, std, fill, np.array(state["flags"], bool), values)


def apply(fitted: Fitted, raw: Any, missing: Sequence[str] = MISSING) -> NDArray[Any]:
    """Convert a user's raw samples to the network's input.

    A table is a mapping of columns (or a DataFrame), texts are a list, images are paths or uint8
    [n, channels, height, width], arrays are arrays.
    """
    state = from_plain(plain(fitted))
    return state.transform(encoded(state, raw, missing))


def encoded(state: Fitted, raw: Any, missing: Sequence[str] = MISSING, unknown: Unknown | None = None) -> NDArray[Any]:
    """The same samples as numbers, before anything fitted is done to them; for a state that `from_plain` made.

    Categories that were not there in training count as missing, and are added to `unknown`.
    """
    r = state.recipe
    if r.form == "table":
        return _encoded(state, raw, missing, Counter() if unknown is None else unknown)
    if r.form == "tokens" and not isinstance(raw, np.ndarray):
        return Hashing(r.options.buckets).tokens(raw, r.options.length)
    if r.form == "image" and not isinstance(raw, np.ndarray):
        raw = _pictures(r, raw)
    x = np.asarray(raw)
    if x.shape[1:] != r.shape:
        raise DataError(f"samples have the shape {list(x.shape[1:])}, but the model was trained on {list(r.shape)}.")
    return x


def tell(unknown: Unknown) -> None:
    """Warn of unknown categories, once for each column."""
    for name in dict.fromkeys(column for column, _ in unknown):
        found = {value: n for (column, value), n in unknown.items() if column == name}
        few = ", ".join(map(repr, [*found][:FEW])) + (", ..." if len(found) > FEW else "")
        said = f"{sum(found.values()):,} of its cells hold categories that were not there in training"
        logging.getLogger("headwise").warning("Column %r: %s (%s), and count as missing.", name, said, few)


def _encoded(state: Fitted, raw: Any, missing: Sequence[str], unknown: Unknown) -> NDArray[np.float64]:
    """Columns of cells as one matrix of numbers."""
    r = state.recipe
    parts: list[NDArray[Any]] = []
    table = _columns(raw, [column.name for column in r.columns])
    for column in r.columns:
        cells = np.fromiter(table[column.name], dtype=object)
        if column.kind == "number":
            found = to_numbers(cells, missing, _refuse(column.name, cells, "is not a number"))
            for i in np.flatnonzero(np.isinf(found)):
                _refuse(column.name, cells, "is infinite, but must be finite")(int(i))
            parts.append(found[:, None])
        elif column.kind == "category":
            place = {value: float(k) for k, value in enumerate(state.values[column.name])}
            texts, gaps = list(map(written, cells)), {*missing, "None", "nan"}
            unknown.update((column.name, t) for t in texts if t not in place and t not in gaps)
            parts.append(np.array([place.get(t, np.nan) for t in texts])[:, None])
        else:
            parts.append(Hashing(min(r.options.buckets, BAG)).tokens(cells.tolist(), column.width))
    return np.concatenate([p.astype(np.float64) for p in parts], axis=1)


def _columns(raw: Any, names: Sequence[str]) -> dict[str, list[Any]]:
    """The cells of these columns, as many in each."""
    if not isinstance(raw, Mapping) and not hasattr(raw, "columns"):
        said = f"samples are {type(raw).__name__}, but must be a DataFrame or a mapping of columns"
        raise DataError(f"{said}: {', '.join(names)}.")
    given = {str(name): name for name in (raw if isinstance(raw, Mapping) else raw.columns)}
    found: dict[str, Any] = {}
    for name in names:
        if name not in given:
            said = f"there is no column {name!r}, which the model was trained on"
            raise DataError(f"{said}: there are {', '.join(given) or 'none'}.")
        found[name] = cells = raw[given[name]]
        if isinstance(cells, str) or not hasattr(cells, "__len__"):
            raise DataError(f"column {name!r} is {cells!r}, but must be a list with a cell for each sample.")
    if len({len(cells) for cells in found.values()}) > 1:
        raise DataError(f"columns differ in length: {', '.join(f'{name} has {len(c)}' for name, c in found.items())}.")
    return {name: list(cells) for name, cells in found.items()}


def _refuse(name: str, cells: NDArray[Any], why: str) -> Callable[[int], None]:
    def wrong(i: int) -> None:
        raise CellError(i, f"column {name!r}: {cells[i]!r} {why}.")

    return wrong


def _pictures(recipe: Preprocessing, paths: Sequence[str | Path]) -> NDArray[np.uint8]:
    channels, height, width = recipe.shape
    pictures = Pictures((height, width), channels)
    return np.stack([x for path in paths if (x := pictures.read(Path(path), strictly)) is not None])
