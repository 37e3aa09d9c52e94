"""The run's folder, as an observer of the driver: a line per round, a line per client, a checkpoint."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ..engine.events import Event, Progress, RoundEnded, RunEnded, RunStarted
from ..engine.state import States
from ..errors import RunError
from ..jsontext import to_json
from ..method import RecordTypes
from .checkpoint import Checkpoints
from .files import append_lines, failing_clearly, write_bytes, write_json
from .query import Run

LINES = ("rounds.jsonl", "clients.jsonl")
EARLY = ("lock", "partition.json", ".partition.json.tmp", ".manifest.json.tmp")
"""all that there can be of a run that was killed before it had a manifest: as good as nothing"""


class Start(NamedTuple):
    """Where a session begins: after the last round that is whole, or at the beginning."""

    progress: Progress | None
    states: States


class RunStore:
    """Writes what happens into the run's folder, so that a crash at any moment loses at most the round in flight."""

    def __init__(self, folder: Path, types: RecordTypes) -> None:
        self.folder, self.types = folder, types
        self._checkpoints = Checkpoints(folder / "checkpoint", types)

    def __call__(self, event: Event) -> None:
        """Store a finished round; sum up at the end."""
        match event:
            case RunStarted():
                (self.folder / "result.json").unlink(missing_ok=True)  # it told how the session before ended
            case RoundEnded(row, clients, progress, states, who):
                sizes = {
                    "rounds.jsonl": append_lines(self.folder / "rounds.jsonl", [row]),
                    "clients.jsonl": append_lines(self.folder / "clients.jsonl", clients),
                }
                changed = {c: data for c in who if (data := states.encoded(c)) is not None}
                self._checkpoints.save(progress, changed, sizes)
                states.settle(sum(map(len, changed.values())))
            case RunEnded(reason):
                write_json(self.folder / "result.json", {"ended": reason, **Run(self.folder).summary()})
            case _:
                pass

    def load(self) -> Start:
        """Where to go on; lines of rounds that were not completed are cut off."""
        found = self._checkpoints.load()
        if found is None and (lines := len(Run(self.folder).rounds)) > 1:
            raise RunError(f"{self.folder} has {lines} rounds but no checkpoint to go on from: start a new run.")
        sizes = found.sizes if found else dict.fromkeys(LINES, 0)
        for name in LINES:
            _check_lines(self.folder / name, sizes[name], found.progress.t if found else 0)
        for name in LINES:
            if (path := self.folder / name).exists():
                with failing_clearly(path):
                    os.truncate(path, sizes[name])
        self._checkpoints.tidy()
        if found is None:
            return Start(None, self._checkpoints.states())
        last = {line["client"]: _scores(line["post"]) for line in Run(self.folder).clients if "post" in line}
        return Start(replace(found.progress, last=last), found.states)

    def close(self) -> None:
        """Close the files."""
        self._checkpoints.close()


def _scores(line: dict[str, Any]) -> dict[str, Any]:
    """Scores as they were: JSON has no infinity, and a loss that was not finite is null there."""
    return {part: s and {**s, "loss": math.nan if s["loss"] is None else s["loss"]} for part, s in line.items()}


def create(folder: Path, manifest: dict[str, Any], partition: dict[str, Any]) -> None:
    """Make a run's folder, its manifest and who has which labels; a folder that holds something else is left alone."""
    with failing_clearly(folder):
        if folder.exists() and (not folder.is_dir() or any(p.name not in EARLY for p in folder.iterdir())):
            raise RunError(
                f"{folder} exists already and is not empty: choose another --out, or go on with it by resume."
            )
        new = [p for p in (folder, *folder.parents) if not p.exists()]
    try:
        with failing_clearly(folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / "partition.json", to_json(partition).encode())
        write_json(folder / "manifest.json", manifest)
    except RunError:
        with suppress(OSError):
            (folder / "partition.json").unlink(missing_ok=True)
        for path in new:
            with suppress(OSError):
                path.rmdir()
        raise


def _check_lines(path: Path, size: int, t: int) -> None:
    have = path.stat().st_size if path.exists() else 0
    if have < size:
        raise RunError(f"{path} is damaged: it has {have} bytes, but round {t} ended at {size}.")
