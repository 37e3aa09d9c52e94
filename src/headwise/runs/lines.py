"""Line files: one JSON object per line, only ever appended to, and verified by size and digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..disk.files import digest, from_json
from ..errors import RunError
from .shapes import LINES, check


class Extent(NamedTuple):
    """The size of a line file at some moment, and the digest of its content then."""

    size: int
    digest: str | None
    """None if an older Headwise stored only the size"""

    def check(self, path: Path, data: bytes, when: str) -> None:
        """Raise `RunError` unless `data` starts with what the file held `when`."""
        if not 0 <= self.size <= len(data):
            raise RunError(f"{path} is damaged: it has {len(data)} bytes, but had {self.size} when {when} ended.")
        if self.digest is not None and digest(data[: self.size]) != self.digest:
            raise RunError(f"{path} is damaged: its first {self.size} bytes changed after {when} ended.")


class Growing:
    """The extent of a file that only grows, computed without reading it from the start each time."""

    def __init__(self, path: Path) -> None:
        self.path, self._size, self._digest = path, 0, hashlib.sha256()

    def extent(self) -> Extent | None:
        """None if there is no such file."""
        if not self.path.exists():
            return None
        with self.path.open("rb") as file:
            file.seek(self._size)
            new = file.read()
        self._size += len(new)
        self._digest.update(new)
        return Extent(self._size, self._digest.hexdigest())


def parse(path: Path, data: bytes, *, backwards: bool = False) -> Iterator[dict[str, Any]]:
    """Parse the complete lines of a file with this content: a killed run may leave a torn last line."""
    lines = data.split(b"\n")[:-1]
    for number in range(len(lines), 0, -1) if backwards else range(1, len(lines) + 1):
        where = f" at line {number}"
        row = from_json(lines[number - 1], path, where)
        check(row, LINES[path.name], path, where)
        yield row
