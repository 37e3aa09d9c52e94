"""Checkpoints: what a run needs after each round to continue with the same bits.

Clients' states are in files of equal slots, one per size, so that a round reads and writes only its own clients. A new
state never overwrites the old one: it takes a free slot, and the old slot becomes free once no checkpoint needs it.
Files are written with `pwrite`, not through a memory map: on a full disk a write reports an error, but a map kills the
process. Then comes one file with the server's state and the slot of every client that has one. The round counts once
that file exists; its name contains its checksum.
"""

from __future__ import annotations

import json
import os
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from ..contract.method import RecordTypes
from ..disk.files import checksum, explain_write_errors, flush, from_json, read_bytes, write_bytes
from ..engine.client.state import States
from ..engine.events import Progress
from ..errors import RunError
from ..records import Packed, from_bytes, pack, to_bytes, unpack
from .files import CHECKPOINT, Extent, check

GRAIN = 4096
"""slot sizes are multiples of this"""
FAR = 2**62
"""longer than any file"""
WRITING = os.O_RDWR | os.O_CREAT


class Slot(NamedTuple):
    """Where a state is: the slot size (which names the file), the slot's number, the bytes used and their checksum."""

    size: int
    number: int
    length: int
    crc: int


class Slots:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[tuple[int, int], int] = {}
        """descriptors by slot size and flags: readers need no write permission"""
        weakref.finalize(self, _close, self._files)  # states are read as long as somebody has them
        self._free: dict[int, list[int]] = {}
        self._next: dict[int, int] = {}
        self._unflushed: set[int] = set()

    def restart(self, live: Iterable[Slot]) -> None:
        """Start over: all slots except `live` are free."""
        used: dict[int, set[int]] = {}
        for slot in live:
            used.setdefault(slot.size, set()).add(slot.number)
        self._next = {size: max(numbers) + 1 for size, numbers in used.items()}
        self._free = {size: sorted(set(range(self._next[size])) - numbers) for size, numbers in used.items()}

    def write(self, data: bytes) -> Slot:
        """Write a state into a free slot; it survives a crash only after `flush`."""
        size = max(1, -(-len(data) // GRAIN)) * GRAIN
        free = self._free.setdefault(size, [])
        number = free.pop() if free else self._next.get(size, 0)
        self._next[size] = max(self._next.get(size, 0), number + 1)
        with explain_write_errors(self._path(size)):
            file = self._file(size, WRITING)
            written = 0
            while written < len(data):  # a nearly full disk may accept only a part
                written += os.pwrite(file, memoryview(data)[written:], number * size + written)
        self._unflushed.add(size)
        return Slot(size, number, len(data), checksum(data))

    def read(self, slot: Slot) -> bytes:
        """The state in this slot; raises `ValueError` if it is not what was written there."""
        size, number, length, crc = slot
        if size < 1 or size % GRAIN or not 0 <= length <= size or not 0 <= number < FAR // size:
            raise ValueError(f"there is no slot {number} of {size} bytes that holds {length}")
        data = os.pread(self._file(size, os.O_RDONLY), length, number * size)
        if len(data) != length or checksum(data) != crc:
            raise ValueError(f"{self._path(size).name} is damaged: slot {number} does not match its checksum")
        return data

    def release(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            self._free.setdefault(slot.size, []).append(slot.number)

    def flush(self) -> None:
        """Make everything written survive a power cut."""
        for size in self._unflushed:
            with explain_write_errors(self._path(size)):
                flush(self._file(size, WRITING))
        self._unflushed.clear()

    def close(self) -> None:
        _close(self._files)

    def _path(self, size: int) -> Path:
        return self.folder / f"states-{size}.bin"

    def _file(self, size: int, flags: int) -> int:
        if (size, flags) not in self._files:
            # a named pipe in a folder from elsewhere would wait for a writer
            self._files[size, flags] = os.open(self._path(size), flags | os.O_NONBLOCK, 0o644)
        return self._files[size, flags]


def _close(files: dict[tuple[int, int], int]) -> None:
    for file in files.values():
        os.close(file)
    files.clear()


KEPT = 2
TRIES = 100
"""attempts to read a run that keeps replacing its checkpoints"""
NAME = re.compile(r"round-([0-9]{7,10})-([0-9a-f]{8})\.safetensors")
BEST = re.compile(NAME.pattern.replace("round", "best"))
WIDTH = 1 + len(Slot._fields)


class Checkpoint(NamedTuple):
    """A state from which a run can continue."""

    progress: Progress
    """without the clients' last scores, which are in clients.jsonl"""
    states: States
    lines: dict[str, Extent]
    """how far each line file had been written, by file name"""


class Checkpoints:
    def __init__(self, folder: Path, types: RecordTypes) -> None:
        self.folder = folder
        self.types = types
        self._slots = Slots(folder)
        self._places: dict[int, Slot] = {}
        """where the states are of those clients that have one"""
        self._files: list[Path] = []
        """the kept checkpoints, newest last"""
        self._replaced: set[Slot] = set()
        """slots that only the second-newest checkpoint needs"""
        self._best: Path | None = None
        """the checkpoint of the best round"""
        self._pinned: set[Slot] = set()
        """the slots that it needs"""

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def read(self, client: int) -> bytes | None:
        """A client's state in the newest checkpoint; None if it has none."""
        slot = self._places.get(client)
        try:
            return None if slot is None else self._slots.read(slot)
        except (OSError, ValueError) as error:
            raise RunError(f"{self.folder} is damaged, or was overwritten while being read: {error}.") from error

    def states(self) -> States:
        """The clients' states, read lazily."""
        return States(self.types.client, self)

    def save(
        self, progress: Progress, changed: Mapping[int, bytes], lines: Mapping[str, Extent], *, best: bool = False
    ) -> None:
        """Write this round's checkpoint, then free what no kept checkpoint needs; keep that of the `best` round."""
        with explain_write_errors(self.folder):
            self.folder.mkdir(exist_ok=True)
        before = {self._places[c] for c in changed if c in self._places}
        for c, data in changed.items():
            self._places[c] = self._slots.write(data)
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
        places = [[c, *slot] for c, slot in self._places.items()]
        named = {
            "places": torch.tensor(places, dtype=torch.int64).view(-1, WIDTH),
            **{f"server.{k}": t for k, t in tensors.items()},
        }
        data = to_bytes(Packed(named, {"note": json.dumps(note)}))
        path = self.folder / f"round-{progress.t:07}-{checksum(data):08x}.safetensors"
        write_bytes(path, data)
        self._files.append(path)
        gone = self._files[:-KEPT]
        free = self._replaced
        self._files = self._files[-KEPT:]
        self._replaced = before
        if best:
            gone += [self._best] if self._best else []
            free = (free | self._pinned) - before
            self._best = path.with_name(path.name.replace("round", "best"))
            self._pinned = set(self._places.values())
            _link_or_copy(path, self._best)
        for old in gone:
            with explain_write_errors(self.folder):
                old.unlink(missing_ok=True)
        self._slots.release(free - self._pinned)

    def load(self, fits: Callable[[Checkpoint], None] = lambda checkpoint: None) -> Checkpoint | None:
        """The newest checkpoint that is intact and that `fits` does not reject by raising; None if there are none."""
        problems: list[str] = []
        for path in self._find_files():
            try:
                checkpoint = self._read(path)
                fits(checkpoint)
            except (RunError, OSError, ValueError) as error:
                problems.append(f"{path.name}: {str(error).rstrip('.')}")
            else:
                self._files = [path]
                return checkpoint
        if problems:
            raise RunError(f"{self.folder} has no intact checkpoint ({'; '.join(problems)}).")
        return None

    def best(self) -> Checkpoint | None:
        """The best round's checkpoint, which the newest one names, with lazy states; None if it was not kept."""
        if self.load() is None or self._best is None:
            return None
        try:
            return self._read(self._best)
        except (OSError, ValueError) as error:
            raise RunError(f"{self._best} is damaged: {error}.") from error

    def look(self) -> Checkpoint | None:
        """The newest checkpoint with all states in memory: a consistent view, even while the run continues."""
        for left in range(TRIES, 0, -1):
            before = self._find_files()
            try:
                checkpoint = self.load()
                return checkpoint and checkpoint._replace(states=checkpoint.states.snapshot())
            except RunError:
                if self._find_files() == before or left == 1:
                    raise
        return None

    def tidy(self) -> None:
        """Before continuing, remove what a crash or a damaged newer checkpoint left behind."""
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            name = path.name.removeprefix(".").removesuffix(".tmp")
            ours = NAME.fullmatch(name) or BEST.fullmatch(name)
            if ours and path not in (*self._files, self._best) and path.is_file():
                with explain_write_errors(path):
                    path.unlink()

    def _find_files(self, kind: re.Pattern[str] = NAME) -> list[Path]:
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
        match = NAME.fullmatch(path.name) or BEST.fullmatch(path.name)
        data = read_bytes(path)
        if match is None or f"{checksum(data):08x}" != match[2]:
            raise ValueError("its checksum does not match")
        tensors, scalars = from_bytes(data)
        note = from_json(str(scalars.get("note")).encode(), path)
        check(note, CHECKPOINT, path)
        if note["round"] != int(match[1]):
            raise ValueError(f"it is of round {note['round']}")
        places = tensors.pop("places", None)
        self._places = _places_of(places)
        own = {k.removeprefix("server."): t for k, t in tensors.items()}
        server = unpack(self.types.server, Packed(own, note["scalars"]))
        live = list(self._places.values())
        if len({slot[:2] for slot in live}) < len(live):
            raise ValueError("two clients share a slot")
        for slot in live:
            self._slots.read(slot)
        self._best, self._pinned = self._find_best(note["best_round"])
        self._slots.restart({*live, *self._pinned})
        lines = {name: Extent(size, note["digests"].get(name, "")) for name, size in note["sizes"].items()}
        progress = Progress(note["round"], server, {}, note["best"], note["waited"])
        return Checkpoint(progress, self.states(), lines)

    def _find_best(self, t: int | None) -> tuple[Path | None, set[Slot]]:
        """The checkpoint of the best round, and its slots; nothing if it is gone or damaged: a run does not need it."""
        for path in self._find_files(BEST) if t is not None else ():
            if _round_of(path) == t and f"{checksum(data := read_bytes(path)):08x}" in path.name:
                return path, set(_places_of(from_bytes(data).tensors["places"]).values())
        return None, set()


def _places_of(rows: torch.Tensor | None) -> dict[int, Slot]:
    if rows is None or rows.dtype != torch.int64 or rows.dim() != 2 or rows.shape[1] != WIDTH:
        raise ValueError("it does not say where the clients' states are")
    places = {c: Slot(*slot) for c, *slot in rows.tolist()}
    if len(places) < len(rows):
        raise ValueError("a client has two slots")
    return places


def _round_of(best: Path | None) -> int | None:
    match = best and BEST.fullmatch(best.name)
    return int(match[1]) if match else None


def _link_or_copy(path: Path, name: Path) -> None:
    """Give the file a second name; copy it where the file system has no links."""
    try:
        name.unlink(missing_ok=True)
        os.link(path, name)
    except OSError:
        write_bytes(name, read_bytes(path))
