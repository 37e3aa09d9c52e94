"""Writing so that a crash at any moment leaves either the old file or the new one, never half of one."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import RunError
from ..jsontext import to_json
from ..paths import behind_links, draft_of


def write_bytes(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write to a temporary name, flush to disk, rename; what is private can be read by its owner only.

    A link stays what it is: the file behind it is replaced. A device, a pipe or a folder is refused.
    """
    path = behind_links(path)
    temporary = draft_of(path)
    with failing_clearly(path):
        try:
            with open(temporary, "wb", opener=_only_mine if private else None) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            _flush_folder(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _only_mine(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _flush_folder(folder: Path) -> None:
    """A rename survives a power cut only when its folder has been flushed too."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def write_json(path: Path, value: Any, *, private: bool = False) -> None:
    """A JSON file, written safely."""
    write_bytes(path, (to_json(value, indent=1) + "\n").encode(), private=private)


def append_lines(path: Path, rows: list[dict[str, Any]]) -> int:
    """Add one JSON line per row, flushed to disk; return the file's size."""
    with failing_clearly(path), path.open("ab") as file:
        file.write(b"".join(to_json(row).encode() + b"\n" for row in rows))
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def read_json(path: Path) -> Any:
    """The content of a JSON file, or one sentence about why not."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise RunError(f"{path.parent} holds no {path.name}: it is not the folder of a run.") from error
    except OSError as error:
        raise RunError(f"{path} can't be read: {error.strerror}.") from error
    except ValueError as error:
        raise RunError(f"{path} is damaged: it is no valid JSON.") from error


def checksum(data: bytes) -> int:
    """Finds torn, truncated and bit-flipped files; no protection against intent."""
    return zlib.crc32(data)


@contextmanager
def failing_clearly(path: Path) -> Iterator[None]:
    """Turn an error of the disk into one sentence."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        remedy = ": make room, then headwise resume goes on with a run that has begun" if full else ""
        raise RunError(f"{path} can't be written: {error.strerror}{remedy}.") from error


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold the folder's lock: two processes must not write one run. A crash gives the lock back by itself."""
    with failing_clearly(folder / "lock"):
        file = (folder / "lock").open("w")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunError(f"{folder} is being written by another process.") from error
        yield
