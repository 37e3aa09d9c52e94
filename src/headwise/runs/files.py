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


def write_bytes(path: Path, data: bytes) -> None:
    """Write to a temporary name, flush to disk, rename."""
    temporary = path.with_name(f".{path.name}.tmp")
    with failing_clearly(path):
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_json(path: Path, value: Any) -> None:
    """A JSON file, written safely."""
    write_bytes(path, (json.dumps(value, indent=1) + "\n").encode())


def append_lines(path: Path, rows: list[dict[str, Any]]) -> int:
    """Add one JSON line per row, flushed to disk; return the file's size."""
    with failing_clearly(path), path.open("ab") as file:
        file.write(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
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
        remedy = " Free some space, then go on with: headwise resume" if error.errno == errno.ENOSPC else ""
        raise RunError(f"{path} can't be written: {error.strerror}.{remedy}") from error


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold the folder's lock: two processes must not write one run. A crash gives the lock back by itself."""
    with failing_clearly(folder / "lock"), (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunError(f"{folder} is being written by another process.") from error
        yield
