"""Arrays that grow block by block, and move to a mapped file when they get large."""

from __future__ import annotations

import tempfile
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

LARGE = 64 << 20
"""bytes beyond which an array moves to a memory-mapped file, so that only what is used is read.
TMPDIR sets the folder of these files; if /tmp is in memory, point it to a disk."""


class GrowingArray:
    """Blocks of rows that become one array."""

    def __init__(self) -> None:
        self._blocks: list[NDArray[Any]] = []
        self._file: IO[bytes] | None = None
        self._rows = self._bytes = 0

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


def mapped(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """An empty array in a file that is deleted with it."""
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, dtype, "w+", shape=shape)
