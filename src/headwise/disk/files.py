"""Atomic writes: a crash leaves either the old file or the new one. Every failure is a one-sentence `RunError`."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import IO, Any

from ..errors import RunError
from .jsontext import to_json
from .paths import draft_of, follow_links

DEPTH = 50
"""how deep a file may nest lists: writing deeper ones again would hit Python's recursion limit"""
_flushes: ContextVar[bool] = ContextVar("_flushes", default=True)


@contextmanager
def without_flushing() -> Iterator[None]:
    """For files that a power cut may destroy: the system decides when they reach the disk.

    Flushing takes most of the time of a short run. A process that is killed loses nothing either way.
    """
    token = _flushes.set(False)
    try:
        yield
    finally:
        _flushes.reset(token)


def flush(number: int) -> None:
    """Wait until what was written to this open file is on the disk."""
    if _flushes.get():
        os.fsync(number)


def write_bytes(path: Path, data: bytes, *, private: bool = False, parents: bool = False) -> None:
    """The whole file at once; only the owner can read a `private` one. `parents` creates missing folders."""
    if parents:
        make_folder(path.parent)
    with replace_file(path, private=private) as file:
        file.write(data)


def check_new_folder(folder: Path) -> None:
    """Raise if there is something in it already, or in its place."""
    with explain_write_errors(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise RunError(f"{folder} already exists and is not an empty folder: choose another one.")


def make_folder(folder: Path) -> None:
    """With its parents; it may exist already."""
    with explain_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A draft of the folder, which appears with its last file, or not at all."""
    check_new_folder(folder)
    with explain_write_errors(folder):
        draft = folder.absolute().with_name(f".{folder.absolute().name}.draft-{os.getpid()}")
        draft.mkdir(parents=True)
    try:
        yield draft
        with explain_write_errors(folder):
            draft.replace(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


@contextmanager
def replace_file(path: Path, *, private: bool = False) -> Iterator[IO[bytes]]:
    """Write to a temporary name, flush to disk, rename: the file appears whole or not at all.

    A symbolic link stays and its target is replaced. Devices, pipes and folders are refused.
    """
    target = follow_links(path)
    temporary = draft_of(target)
    with explain_write_errors(path):
        try:
            with open(temporary, "wb", opener=partial(os.open, mode=0o600) if private else None) as file:
                yield file
                file.flush()
                flush(file.fileno())
            temporary.replace(target)
            _flush_folder(target.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _flush_folder(folder: Path) -> None:
    """A rename survives a power cut only if its folder is flushed too."""
    number = os.open(folder, os.O_RDONLY)
    try:
        flush(number)
    finally:
        os.close(number)


def write_json(path: Path, value: Any, *, private: bool = False) -> None:
    write_bytes(path, (to_json(value, indent=1) + "\n").encode(), private=private)


def append_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append one JSON line per row and flush to disk."""
    with explain_write_errors(path), path.open("ab") as file:
        file.write(b"".join(to_json(row).encode() + b"\n" for row in rows))
        file.flush()
        flush(file.fileno())


def read_bytes(path: Path, absent: bytes | None = None) -> bytes:
    """The content of a regular file, or `absent`, if given, where there is no such file."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise RunError(f"{path} can't be read: it is not a regular file.")
            return file.read()
    except FileNotFoundError as error:
        if absent is not None:
            return absent
        why = ": it is not the folder of a run" if path.name == "manifest.json" else ""
        raise RunError(f"{path.parent} holds no {path.name}{why}.") from error
    except OSError as error:
        raise RunError(f"{path} can't be read: {error.strerror}.") from error


def _without_waiting(path: str, flags: int) -> int:
    """Opening a named pipe would otherwise wait forever for a writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def read_json(path: Path, absent: bytes | None = None) -> Any:
    """Parse a JSON file; one with a checksum (see `seal`) must match it."""
    value = from_json(read_bytes(path, absent), path)
    if isinstance(value, dict) and "checksum" in value and value != seal(value):
        raise RunError(f"{path} is damaged: its checksum does not match.")
    return value


def seal(value: dict[str, Any]) -> dict[str, Any]:
    """Add a checksum over all other entries, which `read_json` verifies."""
    rest = {k: v for k, v in value.items() if k != "checksum"}
    return {**rest, "checksum": digest(to_json(rest).encode())}


def from_json(data: bytes, path: Path, where: str = "") -> Any:
    """Parse bytes of a file; `where` says in errors which part of the file they are."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged{where}: it is not valid JSON.") from error
    if data.count(b"[") + data.count(b"{") > DEPTH and _depth(value) > DEPTH:
        raise RunError(f"{path} is damaged{where}: its lists are nested more than {DEPTH} deep.")
    return value


def _depth(value: Any) -> int:
    """How deep lists and objects are nested, without recursion."""
    depth = 0
    level = [value]
    while level := [v for v in level if isinstance(v, (list, dict))]:
        depth += 1
        level = [inner for v in level for inner in (v.values() if isinstance(v, dict) else v)]
    return depth


def digest(data: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def checksum(data: bytes) -> int:
    """CRC-32: detects torn, truncated and bit-flipped files, but not tampering."""
    return zlib.crc32(data)


@contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Turn an `OSError` while writing into one sentence that names the path."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        remedy = ": free some space, then continue a started run with headwise resume" if full else ""
        raise RunError(f"{path} can't be written: {error.strerror}{remedy}.") from error


@contextmanager
def lock_folder(folder: Path, *, make: bool = False) -> Iterator[None]:
    """Hold the folder's lock, so that only one process writes a run. A crash releases it.

    With `make`, create the folder first if it does not exist.
    """
    number = _lock(folder, make)
    try:
        yield
    finally:
        os.close(number)


def _lock(folder: Path, make: bool) -> int:
    path = folder / "lock"
    for _ in range(100):
        with explain_write_errors(path):
            if make:
                folder.mkdir(parents=True, exist_ok=True)
            try:
                number = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            except FileNotFoundError:
                if make:  # another process failed to start here and has just removed the folder
                    continue
                raise
        if _is_locked(number, path, folder):
            return number
        os.close(number)
    raise RunError(f"{path} can't be written: another process keeps removing it.")


def _is_locked(number: int, path: Path, folder: Path) -> bool:
    """Lock this file; False if the path now leads to another file, so the lock would keep nobody out."""
    try:
        with explain_write_errors(path):
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return path.exists() and os.path.samestat(os.fstat(number), path.stat())
    except RunError as error:
        os.close(number)
        if isinstance(error.__cause__, BlockingIOError):
            raise RunError(f"{folder} is being written by another process.") from error
        raise
