"""The files that a data.toml describes, and whether they are still the same: size and time first, then content."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from ...disk.files import read_json
from ...errors import DataError, RunError
from .description import Description
from .readers.layouts import check_folder, fits
from .references import REFERENCES, referenced_files


class FileHash(NamedTuple):
    size: int
    changed: int
    """when, in nanoseconds"""
    sha256: str


Hashes = Mapping[str, FileHash]


def hashes_of(d: Description, known: Hashes | None = None, *, fresh: bool = False) -> dict[str, FileHash]:
    """Every file by its name in the described folder; those with the size and time of `known` are not read."""
    read = _hash.__wrapped__ if fresh else _hash
    found: dict[str, FileHash] = {}
    for name, path in _files(d).items():
        try:
            stat = path.stat()
            before = (known or {}).get(name)
            if before is None or before[:2] != (stat.st_size, stat.st_mtime_ns):
                before = FileHash(stat.st_size, stat.st_mtime_ns, read(path, stat.st_size, stat.st_mtime_ns))
        except OSError as error:
            raise DataError(f"{path} can't be read: {error.strerror}.") from None
        found[name] = before
    return found


def fingerprint(d: Description, known: Hashes | None = None) -> str:
    """SHA-256 of the described files and their names."""
    digest = hashlib.sha256()
    for name, found in hashes_of(d, known).items():
        digest.update(f"{name}\n{found.sha256}\n".encode())
    return digest.hexdigest()


def check_unchanged(d: Description, known: Hashes, *, content: bool = False) -> None:
    """Raise a DataError that names the first file that is not as in `known`; `content`: read all files to find out."""
    now = hashes_of(d, None if content else known, fresh=content)
    for name in [*known, *now]:
        path = d.place if d.place.is_file() else d.place / name
        if name not in now:
            raise DataError(f"{path} is gone since the run began.")
        if name not in known:
            raise DataError(f"{path} is new since the run began.")
        if now[name].sha256 != known[name].sha256:
            raise DataError(f"{path} has changed since the run began.")


def read_hashes(path: Path) -> dict[str, FileHash]:
    """As a run's folder keeps them."""
    try:
        return {name: FileHash(*entry) for name, entry in read_json(path).items()}
    except (AttributeError, TypeError) as error:
        raise RunError(f"{path} is damaged: it must list the files of the data.") from error


def _files(d: Description) -> dict[str, Path]:
    if d.place.is_file():
        return {d.place.name: d.place}
    check_folder(d)
    found = {p.relative_to(d.place).as_posix(): p for p in sorted(d.place.rglob("*")) if fits(p, d)}
    if d.format == "arrays" and REFERENCES in found:
        found |= {path: Path(path) for path in referenced_files(d.place)}
    return found


@lru_cache(1 << 17)
def _hash(path: Path, size: int, changed: int) -> str:
    """Hash of one file, cached until its size or time changes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
