"""DataFrames and Hugging Face data sets by duck typing: neither package is imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError


def is_frame(value: Any) -> bool:
    """Whether it has named columns, like a pandas or polars DataFrame or a Hugging Face Dataset."""
    return not isinstance(value, Mapping) and _names(value) is not None


def _names(value: Any) -> list[Any] | None:
    """Column names, of any type; None if it has no columns."""
    names = getattr(value, "column_names", None)
    names = getattr(value, "columns", None) if names is None else names
    return None if names is None or callable(names) else list(names)


def columns_of(frame: Any) -> list[str]:
    return [str(name) for name in _names(frame) or []]


def cells_of(frame: Any, client: str) -> dict[str, list[Any]]:
    """Each column's cells as plain Python values."""
    named = _labels(frame)
    found = {str(n): [_plain(cell, named.get(str(n))) for cell in _list(frame[n])] for n in _names(frame) or []}
    lengths = {name: len(cells) for name, cells in found.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"client {client!r} has columns of different lengths: {lengths}.")
    return found


def _labels(frame: Any) -> dict[str, list[str]]:
    """The class names of a Hugging Face Dataset's ClassLabel columns."""
    features = getattr(frame, "features", None)
    if not isinstance(features, Mapping):
        return {}
    return {str(k): list(f.names) for k, f in features.items() if isinstance(getattr(f, "names", None), list)}


def _list(column: Any) -> list[Any]:
    make: Any = getattr(column, "to_list", None) or getattr(column, "tolist", None)
    return list(column) if make is None else list(make())


def _plain(cell: Any, names: list[str] | None) -> Any:
    """A number, a string, a list, or None if the value is missing."""
    if callable(getattr(cell, "tolist", None)):  # of NumPy, or a tensor
        cell = cell.tolist()
    if cell is None or type(cell).__name__ in ("NAType", "NaTType") or (isinstance(cell, float) and cell != cell):
        return None
    if names is not None and isinstance(cell, int) and 0 <= cell < len(names):
        return names[cell]
    if isinstance(cell, bool):
        return int(cell)
    return cell if isinstance(cell, int | float | str | list) else str(cell)


def partitions(value: Any) -> dict[str, Any] | None:
    """Each client's data from a flwr-datasets partitioner; None if `value` is not one."""
    take, count = getattr(value, "load_partition", None), getattr(value, "num_partitions", None)
    if not callable(take) or not isinstance(count, int):
        return None
    found = [take(k) for k in range(count)]
    named: Any = getattr(value, "partition_id_to_natural_id", None) or {}  # known only now
    return {str(named.get(k, k)): each for k, each in enumerate(found)}


def samples_of(name: str, dataset: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """All samples of a torch Dataset of (x, y) pairs."""
    pairs = [dataset[i] for i in range(len(dataset))]
    if not all(isinstance(p, tuple | list) and len(p) == 2 for p in pairs):
        raise DataError(f"client {name!r} has a {type(dataset).__name__} whose samples are not (x, y).")
    x, y = ([np.asarray(each[k]) for each in pairs] for k in (0, 1))
    shapes = sorted({a.shape for a in x})
    if len(shapes) > 1:
        raise DataError(f"client {name!r} has samples of different shapes: {list(shapes[0])} and {list(shapes[1])}.")
    return np.stack(x), np.stack(y)
