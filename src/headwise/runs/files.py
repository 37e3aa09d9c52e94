"""The files of a run's folder, checked as they are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..disk.files import digest, from_json, read_bytes, read_json
from ..errors import RunError
from ..log.schema import ENDS, UNFINISHED
from .lines import Extent, parse
from .manifest import read_manifest
from .shapes import PARTITION, RESULT, check


@dataclass(frozen=True)
class RunFiles:
    """What a run wrote; raises `RunError` where that is damaged."""

    path: Path

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What never changes: experiment, partition, versions and hardware."""
        return read_manifest(self.path)

    @property
    def result(self) -> dict[str, Any]:
        """Why the last session ended, and how long each file of lines was then."""
        path = self.path / "result.json"
        found = read_json(path, absent=f'{{"ended": "{UNFINISHED}"}}'.encode())
        check(found, RESULT, path)
        if found["ended"] not in (*ENDS, UNFINISHED):
            raise RunError(f"{path} is damaged: its ended is {found['ended']!r}.")
        return found

    @cached_property
    def partition(self) -> dict[str, Any]:
        """Each client's sample counts by class, for each part; and the names of the classes."""
        path = self.path / "partition.json"
        data = read_bytes(path)
        if digest(data) != self.manifest.get("partition_digest", digest(data)):
            raise RunError(f"{path} is damaged: it has changed since the run began.")
        found = from_json(data, path)
        check(found, PARTITION, path)
        parts = [found["train"], found["test"], found.get("val") or found["train"]]
        rows = [row for part in parts for row in part]
        if len({len(part) for part in parts}) > 1 or len({len(row) for row in rows}) > 1 or [] in rows:
            raise RunError(f"{path} is damaged: its rows have different lengths.")
        return found

    def lines(self, name: str, *, backwards: bool = False) -> Iterator[dict[str, Any]]:
        """The objects of a line file."""
        return parse(self.path / name, self.content(name), backwards=backwards)

    def content(self, name: str) -> bytes:
        """A line file's content, which must not have changed after the last session ended."""
        said = self.result.get("lines", {}).get(name)
        data = read_bytes(self.path / name, absent=b"")
        if said:
            Extent(**said).check(self.path / name, data, "the run")
        return data
