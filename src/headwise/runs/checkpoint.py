"""Checkpoints: after each round, what the next one needs to give the same bits.

A round writes the states of the clients that trained into free slots (`slots.py`), then one file with the server's
state and where every client's state is. Only when that file is there does the round count; its name carries its
checksum. The last two are kept; a damaged one is passed over for the one before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from ..engine.events import Progress
from ..engine.state import States
from ..errors import RunError
from ..method import RecordTypes
from ..records import Packed, RecordError, from_bytes, pack, to_bytes, unpack
from .files import checksum, write_bytes
from .slots import Place, Slots

KEPT = 2
NOWHERE = Place(-1, -1, -1, -1)


class Checkpoint(NamedTuple):
    """Where a run can go on."""

    progress: Progress
    """without the clients' last scores, which stand in the run's lines"""
    states: States
    sizes: dict[str, int]
    """how long the run's line files were"""


class Checkpoints:
    """The checkpoints in one folder."""

    def __init__(self, folder: Path, types: RecordTypes) -> None:
        self.folder, self.types = folder, types
        self._slots = Slots(folder)
        self._places = torch.empty(0, len(NOWHERE), dtype=torch.int64)
        self._files: list[Path] = []
        """the kept checkpoints, the newest last"""
        self._replaced: list[Place] = []
        """slots that only the checkpoint before the last one needs"""

    def __iter__(self) -> Iterator[int]:
        """The clients that have a state here."""
        return iter((self._places[:, 0] >= 0).nonzero().flatten().tolist())

    def read(self, client: int) -> bytes | None:
        """A client's state as of the last checkpoint."""
        place = self._place(client)
        return None if place == NOWHERE else self._slots.read(place)

    def states(self) -> States:
        """The clients' states, read from here when they are asked for."""
        return States(self.types.client, self)

    def save(self, progress: Progress, changed: Mapping[int, bytes], sizes: Mapping[str, int]) -> None:
        """Write this round's checkpoint, then give back what no kept checkpoint needs."""
        self.folder.mkdir(exist_ok=True)
        before = {c: self._place(c) for c in changed}
        for c, data in changed.items():
            self._put(c, self._slots.write(data))
        self._slots.flush()
        tensors, scalars = pack(progress.server)
        carried = {"best": progress.best, "waited": progress.waited}
        note = json.dumps({"round": progress.t, **carried, "sizes": dict(sizes), "scalars": scalars})
        named = {"places": self._places, **{f"server.{k}": t for k, t in tensors.items()}}
        data = to_bytes(Packed(named, {"note": note}))
        path = self.folder / f"round-{progress.t:07}-{checksum(data):08x}.safetensors"
        write_bytes(path, data)
        self._files.append(path)
        while len(self._files) > KEPT:
            self._files.pop(0).unlink(missing_ok=True)
        self._slots.release(self._replaced)
        self._replaced = [place for place in before.values() if place != NOWHERE]

    def load(self) -> Checkpoint | None:
        """The newest checkpoint that is whole; None if there is none at all."""
        problems: list[str] = []
        for path in sorted(self.folder.glob("round-*.safetensors"), reverse=True):
            try:
                found = self._read(path)
            except (RecordError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                problems.append(f"{path.name}: {error}")
            else:
                self._files = [path]
                return found
        if problems:
            raise RunError(f"{self.folder} holds no checkpoint that is whole ({'; '.join(problems)}).")
        return None

    def tidy(self) -> None:
        """Before going on: remove what a crash, or a damaged later checkpoint, left behind."""
        for path in self.folder.glob("*round-*"):
            if path not in self._files:
                path.unlink()

    def close(self) -> None:
        """Close the files."""
        self._slots.close()

    def _read(self, path: Path) -> Checkpoint:
        data = path.read_bytes()
        if f"{checksum(data):08x}" != path.stem.split("-")[2]:
            raise ValueError("its checksum does not fit")
        tensors, scalars = from_bytes(data)
        self._places = tensors.pop("places")
        note = json.loads(str(scalars["note"]))
        own = {k.removeprefix("server."): t for k, t in tensors.items()}
        server = unpack(self.types.server, Packed(own, note["scalars"]))
        live = [self._place(c) for c in self]
        for place in live:
            self._slots.read(place)
        self._slots.restart(live)
        progress = Progress(note["round"], server, {}, note["best"], note["waited"])
        return Checkpoint(progress, self.states(), note["sizes"])

    def _place(self, client: int) -> Place:
        return Place(*self._places[client].tolist()) if client < len(self._places) else NOWHERE

    def _put(self, client: int, place: Place) -> None:
        if client >= len(self._places):
            more = torch.full((client + 1 - len(self._places), len(NOWHERE)), -1, dtype=torch.int64)
            self._places = torch.cat([self._places, more])
        self._places[client] = torch.tensor(place)
