"""Arrays that are too large to copy: they stay in their files, and the run's folder says where."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...disk.files import read_json
from ...errors import DataError

REFERENCES = "x.json"
"""instead of x.npy"""


def place_of(x: NDArray[Any]) -> dict[str, Any] | None:
    """The file that a mapped array lies in, and where; None if it is in memory or has gaps."""
    root: Any = x
    while isinstance(root.base, np.ndarray):
        root = root.base
    if not isinstance(root, np.memmap) or not root.filename or root.mode == "c" or not x.flags.c_contiguous:
        return None  # "c": changes are in memory only
    root.flush()
    start = x.__array_interface__["data"][0] - root.__array_interface__["data"][0] + root.offset
    return {"file": str(Path(root.filename).absolute()), "offset": start, "type": x.dtype.str, "shape": list(x.shape)}


def referenced_files(home: Path) -> list[str]:
    return list(dict.fromkeys(each["file"] for each in read_json(home / REFERENCES)))


def read_references(home: Path) -> NDArray[Any]:
    """All of these arrays as one, of which only what is used is read."""
    try:
        parts = [
            np.memmap(p["file"], np.dtype(p["type"]), "r", p["offset"], tuple(p["shape"]))
            for p in read_json(home / REFERENCES)
        ]
    except (OSError, ValueError) as error:
        raise DataError(f"the arrays of {home / REFERENCES} can't be read: {error}.") from None
    return JoinedArrays(parts)  # pyright: ignore[reportReturnType] # as much of an array as its users need


class JoinedArrays:
    """Arrays in files as if they were one array, in the type that networks take."""

    def __init__(self, parts: Sequence[NDArray[Any]]) -> None:
        self._parts = parts
        self._ends = np.cumsum([len(part) for part in parts])
        self.dtype = one_type(parts[0].dtype)
        self.shape = (int(self._ends[-1]), *parts[0].shape[1:])
        self.ndim = len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        """A slice of rows, or those with these numbers."""
        i = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else np.asarray(rows)
        found = np.empty((len(i), *self.shape[1:]), self.dtype)
        which = np.searchsorted(self._ends, i, side="right")
        for k in np.unique(which):
            mine = which == k
            found[mine] = self._parts[k][i[mine] - (self._ends[k] - len(self._parts[k]))]
        return found


def one_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """uint8 stays uint8 (images), other integers become int32 (tokens), the rest float32."""
    return np.dtype(np.uint8 if dtype == np.uint8 else np.int32 if dtype.kind in "iu" else np.float32)
