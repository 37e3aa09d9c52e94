"""A folder in shared memory through which processes of one machine hand each other bytes."""

from __future__ import annotations

import fcntl
import itertools
import math
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

MEMORY = Path("/dev/shm")
SMALL = 64 * 1024
"""bytes that go through the pipe as they are: a file would cost more"""
ROOM = 2**30
"""bytes that must be free beside the data, for messages and answers"""

Parcel = bytes | str
"""bytes, or the name of a file on the shelf"""


class Shelf:
    """Made by the driver, which holds its lock; workers open it by its path."""

    def __init__(self, folder: Path, lock: IO[str] | None = None) -> None:
        self.folder, self._lock = folder, lock
        self._numbers = itertools.count()

    @classmethod
    def make(cls, size: int) -> Shelf:
        """A new shelf with room for so many bytes of data: in memory, or in a temporary folder where that is small."""
        fits = MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > size + ROOM
        base = MEMORY if fits else Path(tempfile.gettempdir())
        for left in base.glob("headwise-*"):
            _sweep(left)
        folder = Path(tempfile.mkdtemp(prefix="headwise-", dir=base))
        lock = (folder / "lock").open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        return cls(folder, lock)

    def put(self, data: bytes) -> Parcel:
        """What stands for these bytes in another process."""
        if len(data) < SMALL:
            return data
        name = f"{os.getpid()}-{next(self._numbers)}"
        (self.folder / name).write_bytes(data)
        return name

    def look(self, parcel: Parcel) -> bytes:
        """The bytes."""
        return parcel if isinstance(parcel, bytes) else (self.folder / parcel).read_bytes()

    def take(self, parcel: Parcel) -> bytes:
        """The bytes, which are not needed again."""
        data = self.look(parcel)
        self.drop(parcel)
        return data

    def drop(self, parcel: Parcel) -> None:
        """Remove it, if it takes any room."""
        if isinstance(parcel, str):
            (self.folder / parcel).unlink(missing_ok=True)

    def share(self, name: str, t: Tensor) -> Tensor:
        """A tensor with the same values, which `shared` finds in other processes."""
        mapped = shared(self.folder / name, t.shape, t.stride(), t.dtype)
        mapped.copy_(t)
        return mapped

    def remove(self) -> None:
        """Nothing here is needed any more."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock:
            self._lock.close()


def shared(path: Path, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A dense tensor whose memory is this file; all who open it see the same."""
    flat = torch.from_file(str(path), shared=True, size=max(math.prod(shape), 1), dtype=dtype)
    return flat.as_strided(shape, stride)


def _sweep(folder: Path) -> None:
    """Remove a shelf whose driver was killed: nobody holds its lock any more."""
    with suppress(OSError), (folder / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
