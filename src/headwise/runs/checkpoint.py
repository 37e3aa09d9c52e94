"""Checkpoints: what a run needs after each round to continue with the same bits.

A round writes the states of the clients that trained into free slots (`slots.py`), then one file with the server's
state and the slot of every client. The round counts once that file exists; its name contains its checksum. The last two
are kept: if the newest is damaged, the one before it is used. That of the best round stays under a second name, if
wanted, and so do its slots, until another round is better; no run continues from it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from ..contract.method import RecordTypes
from ..disk.files import checksum, failing_clearly, from_json, read_bytes, write_bytes
from ..engine.client.state import States
from ..engine.events import Progress
from ..errors import RunError
from ..records import Packed, from_bytes, pack, to_bytes, unpack
from .lines import Extent
from .shapes import CHECKPOINT, check
from .slots import Slot, Slots

KEPT = 2
TRIES = 100
"""attempts to read a run that keeps replacing its checkpoints"""
NAME = re.compile(r"round-([0-9]{7,10})-([0-9a-f]{8})\.safetensors")
BEST = re.compile(NAME.pattern.replace("round", "best"))
NOWHERE = Slot(-1, -1, -1, -1)


class Checkpoint(NamedTuple):
    """A state from which a run can continue."""

    progress: Progress
    """without the clients' last scores, which are in clients.jsonl"""
    states: States
    lines: dict[str, Extent]
    """how far each line file had been written, by file name"""


class Checkpoints:
    def __init__(self, folder: Path, types: RecordTypes) -> None:
        self.folder, self.types = folder, types
        self._slots = Slots(folder)
        self._places = torch.empty(0, len(NOWHERE), dtype=torch.int64)
        self._files: list[Path] = []
        """the kept checkpoints, newest last"""
        self._replaced: set[Slot] = set()
        """slots that only the second-newest checkpoint needs"""
        self._best: Path | None = None
        """the checkpoint of the best round"""
        self._pinned: set[Slot] = set()
        """the slots that it needs"""

    def __iter__(self) -> Iterator[int]:
        """The clients that have a state."""
        return iter((self._places[:, 0] >= 0).nonzero().flatten().tolist())

    def read(self, client: int) -> bytes | None:
        """A client's state in the newest checkpoint; None if it has none."""
        slot = self._slot(client)
        try:
            return None if slot == NOWHERE else self._slots.read(slot)
        except (OSError, ValueError) as error:
            raise RunError(f"{self.folder} is damaged, or was overwritten while being read: {error}.") from error

    def states(self) -> States:
        """The clients' states, read lazily."""
        return States(self.types.client, self)

    def save(
        self, progress: Progress, changed: Mapping[int, bytes], lines: Mapping[str, Extent], *, best: bool = False
    ) -> None:
        """Write this round's checkpoint, then free what no kept checkpoint needs; keep that of the `best` round."""
        with failing_clearly(self.folder):
            self.folder.mkdir(exist_ok=True)
        before = {slot for c in changed if (slot := self._slot(c)) != NOWHERE}
        for c, data in changed.items():
            self._put(c, self._slots.write(data))
        self._slots.flush()
        tensors, scalars = pack(progress.server)
        note = {
            "round": progress.t,
            "best": progress.best,
            "waited": progress.waited,
            "sizes": {name: extent.size for name, extent in lines.items()},
            "digests": {name: extent.digest for name, extent in lines.items()},
            "scalars": scalars,
            "best_round": progress.t if best else _round_of(self._best),
        }
        named = {"places": self._places, **{f"server.{k}": t for k, t in tensors.items()}}
        data = to_bytes(Packed(named, {"note": json.dumps(note)}))
        path = self.folder / f"round-{progress.t:07}-{checksum(data):08x}.safetensors"
        write_bytes(path, data)
        self._files.append(path)
        gone, free = self._files[:-KEPT], self._replaced
        self._files, self._replaced = self._files[-KEPT:], before
        if best:
            gone, free = [*gone, *([self._best] if self._best else [])], (free | self._pinned) - before
            self._best, self._pinned = path.with_name(path.name.replace("round", "best")), _slots_in(self._places)
            _second_name(path, self._best)
        for old in gone:
            with failing_clearly(self.folder):
                old.unlink(missing_ok=True)
        self._slots.release(free - self._pinned)

    def load(self, fits: Callable[[Checkpoint], None] = lambda found: None) -> Checkpoint | None:
        """The newest checkpoint that is intact and that `fits` does not reject by raising; None if there are none."""
        problems: list[str] = []
        for path in self._found():
            try:
                found = self._read(path)
                fits(found)
            except (RunError, OSError, ValueError) as error:
                problems.append(f"{path.name}: {str(error).rstrip('.')}")
            else:
                self._files = [path]
                return found
        if problems:
            raise RunError(f"{self.folder} has no intact checkpoint ({'; '.join(problems)}).")
        return None

    def best(self) -> Checkpoint | None:
        """That of the best round, as the newest checkpoint names it; None if it was not kept. States are lazy."""
        if self.load() is None or self._best is None:
            return None
        try:
            return self._read(self._best)
        except (OSError, ValueError) as error:
            raise RunError(f"{self._best} is damaged: {error}.") from error

    def look(self) -> Checkpoint | None:
        """The newest checkpoint with all states in memory: a consistent view, even while the run continues."""
        for left in range(TRIES, 0, -1):
            before = self._found()
            try:
                found = self.load()
                return found and found._replace(states=found.states.snapshot())
            except RunError:
                if self._found() == before or left == 1:
                    raise
        return None

    def tidy(self) -> None:
        """Before continuing, remove what a crash or a damaged newer checkpoint left behind."""
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            name = path.name.removeprefix(".").removesuffix(".tmp")
            ours = NAME.fullmatch(name) or BEST.fullmatch(name)
            if ours and path not in (*self._files, self._best) and path.is_file():
                with failing_clearly(path):
                    path.unlink()

    def _found(self, kind: re.Pattern[str] = NAME) -> list[Path]:
        """The checkpoint files, newest first."""
        try:
            named = [(match, path) for path in self.folder.iterdir() if (match := kind.fullmatch(path.name))]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise RunError(f"{self.folder} can't be read: {error.strerror}.") from error
        return [path for _, path in sorted(named, key=lambda pair: (-int(pair[0][1]), pair[0][2]))]

    def close(self) -> None:
        self._slots.close()

    def _read(self, path: Path) -> Checkpoint:
        match, data = NAME.fullmatch(path.name) or BEST.fullmatch(path.name), read_bytes(path)
        if match is None or f"{checksum(data):08x}" != match[2]:
            raise ValueError("its checksum does not match")
        tensors, scalars = from_bytes(data)
        note = from_json(str(scalars.get("note")).encode(), path)
        check(note, CHECKPOINT, path)
        if note["round"] != int(match[1]):
            raise ValueError(f"it is of round {note['round']}")
        places = tensors.pop("places", None)
        if places is None or places.dtype != torch.int64 or places.dim() != 2 or places.shape[1] != len(NOWHERE):
            raise ValueError("it does not say where the clients' states are")
        self._places = places
        own = {k.removeprefix("server."): t for k, t in tensors.items()}
        server = unpack(self.types.server, Packed(own, note["scalars"]))
        live = [self._slot(c) for c in self]
        if len({slot[:2] for slot in live}) < len(live):
            raise ValueError("two clients share a slot")
        for slot in live:
            self._slots.read(slot)
        self._best, self._pinned = self._found_best(note.get("best_round"))
        self._slots.restart({*live, *self._pinned})
        lines = {name: Extent(size, note.get("digests", {}).get(name)) for name, size in note["sizes"].items()}
        progress = Progress(note["round"], server, {}, note["best"], note["waited"])
        return Checkpoint(progress, self.states(), lines)

    def _found_best(self, t: int | None) -> tuple[Path | None, set[Slot]]:
        """The checkpoint of the best round, and its slots; nothing if it is gone or damaged: a run does not need it."""
        for path in self._found(BEST) if t is not None else ():
            if _round_of(path) == t and f"{checksum(data := read_bytes(path)):08x}" in path.name:
                return path, _slots_in(from_bytes(data).tensors["places"])
        return None, set()

    def _slot(self, client: int) -> Slot:
        return Slot(*self._places[client].tolist()) if client < len(self._places) else NOWHERE

    def _put(self, client: int, slot: Slot) -> None:
        if client >= len(self._places):
            more = torch.full((client + 1 - len(self._places), len(NOWHERE)), -1, dtype=torch.int64)
            self._places = torch.cat([self._places, more])
        self._places[client] = torch.tensor(slot)


def _slots_in(places: torch.Tensor) -> set[Slot]:
    return {Slot(*row) for row in places.tolist() if row[0] >= 0}


def _round_of(best: Path | None) -> int | None:
    match = best and BEST.fullmatch(best.name)
    return int(match[1]) if match else None


def _second_name(path: Path, name: Path) -> None:
    """The same bytes under another name: without a copy, where the file system can do that."""
    try:
        name.unlink(missing_ok=True)
        os.link(path, name)
    except OSError:
        write_bytes(name, read_bytes(path))
