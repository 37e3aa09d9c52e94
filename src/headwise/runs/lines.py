"""Line files: one JSON object per line, written at their end only, and known by their size and digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..disk.files import digest, from_json, read_bytes
from ..errors import RunError
from .shapes import CLIENT, DIAGNOSTIC, ROUND, SITE, Shape, check

SHAPES: dict[str, Shape] = {
    "rounds.jsonl": ROUND,
    "clients.jsonl": CLIENT,
    "diagnostics.jsonl": DIAGNOSTIC,
    "sites.jsonl": SITE,
}


class Extent(NamedTuple):
    """How long a line file was at some moment, and the digest of what it held."""

    size: int
    digest: str | None
    """None: an older Headwise stored the size alone"""

    def check(self, path: Path, data: bytes, when: str) -> None:
        """One sentence about the file if its content does not begin with what it held."""
        if not 0 <= self.size <= len(data):
            raise RunError(f"{path} is damaged: it has {len(data)} bytes, but {when} ended at {self.size}.")
        if self.digest is not None and digest(data[: self.size]) != self.digest:
            raise RunError(f"{path} is damaged: its first {self.size} bytes are not those that {when} ended with.")


class Growing:
    """A file that only grows: its extent, without reading it again from its start."""

    def __init__(self, path: Path) -> None:
        self.path, self._size, self._digest = path, 0, hashlib.sha256()

    def extent(self) -> Extent | None:
        """As the file is now; None if there is none."""
        if not self.path.exists():
            return None
        with self.path.open("rb") as file:
            file.seek(self._size)
            new = file.read()
        self._size += len(new)
        self._digest.update(new)
        return Extent(self._size, self._digest.hexdigest())


def parse(path: Path, data: bytes, *, backwards: bool = False) -> Iterator[dict[str, Any]]:
    """The lines of a file with this content, whole ones only: the last one of a run that was killed may be torn."""
    lines = data.split(b"\n")[:-1]
    for number in range(len(lines), 0, -1) if backwards else range(1, len(lines) + 1):
        where = f" at line {number}"
        row = from_json(lines[number - 1], path, where)
        check(row, SHAPES[path.name], path, where)
        yield row


def content(path: Path) -> bytes:
    """What a line file holds; a run may not have one."""
    return read_bytes(path, absent=b"")
