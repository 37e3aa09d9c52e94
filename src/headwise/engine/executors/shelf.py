"""A folder in shared memory through which processes on one machine exchange bytes."""

from __future__ import annotations

import fcntl
import itertools
import json
import math
import os
import re
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from ...disk.jsontext import to_json

MEMORY = Path("/dev/shm")
PREFIX = ".headwise-shelf-"
"""how shelf folders are named"""
MARK = "owner.json"
"""the file in each folder that names its owner, which holds a lock on it"""
OURS = re.compile(r"x|y|weight|[0-9]+-[0-9]+")
"""file names on a shelf"""
SMALL = 64 * 1024
"""below this many bytes, a pipe is cheaper than a file"""
ROOM = 2**30
"""bytes that must be free besides the data, for messages and answers"""

Handle = bytes | str
"""bytes, or the name of a file on the shelf"""


class Shelf:
    """Made by the driver, which holds its lock; workers open it by path."""

    def __init__(self, folder: Path, lock: IO[str] | None = None) -> None:
        self.folder = folder
        self._lock = lock
        self._numbers = itertools.count()

    @classmethod
    def make(cls, size: int) -> Shelf:
        """A new shelf for `size` bytes of data: in shared memory, or in a temporary folder if that is too small."""
        fits = MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > size + ROOM
        base = MEMORY if fits else Path(tempfile.gettempdir())
        for left in base.glob(f"{PREFIX}*"):
            _sweep(left)
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        mark = (folder / MARK).open("w", encoding="utf-8")
        fcntl.flock(mark, fcntl.LOCK_EX)
        mark.write(to_json(_owner(os.getpid())))
        mark.flush()
        return cls(folder, mark)

    def put(self, data: bytes) -> Handle:
        """A handle that gives another process these bytes."""
        if len(data) < SMALL:
            return data
        name = f"{os.getpid()}-{next(self._numbers)}"
        (self.folder / name).write_bytes(data)
        return name

    def look(self, handle: Handle) -> bytes:
        return handle if isinstance(handle, bytes) else (self.folder / handle).read_bytes()

    def take(self, handle: Handle) -> bytes:
        """The bytes, which are then dropped."""
        data = self.look(handle)
        self.drop(handle)
        return data

    def drop(self, handle: Handle) -> None:
        if isinstance(handle, str):
            (self.folder / handle).unlink(missing_ok=True)

    def share(self, name: str, t: Tensor) -> Tensor:
        """A copy of the tensor that other processes open with `open_shared`."""
        mapped = open_shared(self.folder / name, t.shape, t.stride(), t.dtype)
        mapped.copy_(t)
        return mapped

    def remove(self) -> None:
        with suppress(OSError):  # a later sweep removes what is left
            _clear(self.folder)
        if self._lock:
            self._lock.close()


def open_shared(path: Path, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A dense tensor whose memory is this file, shared by every process that opens it."""
    flat = torch.from_file(str(path), shared=True, size=max(math.prod(shape), 1), dtype=dtype)
    return flat.as_strided(shape, stride)


def _owner(pid: int) -> dict[str, Any]:
    """Identifies a process: a pid may be reused, but not with the same start time."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
        started = int(after_name.split()[19])
    except (OSError, IndexError, ValueError):
        started = None  # there is no such process, or no /proc
    return {"shelf of": "headwise", "user": os.getuid(), "pid": pid, "started": started}


def _sweep(folder: Path) -> None:
    """Remove the shelf of a driver that was killed; when in doubt, leave it."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        kind = folder.lstat()
        if not stat.S_ISDIR(kind.st_mode) or kind.st_uid != os.getuid():
            return
        with (folder / MARK).open("r+", encoding="utf-8") as mark:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a driver in another container has no pid here
            owner = json.loads(mark.read(200))
            now = _owner(int(owner["pid"]))
            written_by_us = owner["started"] is not None and owner == {**now, "started": owner["started"]}
            if written_by_us and owner["started"] != now["started"]:
                _clear(folder)


def _clear(folder: Path) -> None:
    """Remove a shelf, its mark last, so that an interrupted sweep can be repeated."""
    for path in folder.iterdir():
        if OURS.fullmatch(path.name):
            path.unlink()
    (folder / MARK).unlink()
    folder.rmdir()
