"""Clients' states on disk: one file of equal slots per size, so that a round reads and writes only its own clients.

A new state never overwrites the old one: it takes a free slot, and the old slot becomes free once no checkpoint needs
it. Files are written with `pwrite`, not through a memory map: on a full disk a write reports an error, but a map kills
the process.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ..disk.files import checksum, failing_clearly

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
        with failing_clearly(self._path(size)):
            written, file = 0, self._file(size, WRITING)
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
            with failing_clearly(self._path(size)):
                os.fsync(self._file(size, WRITING))
        self._unflushed.clear()

    def close(self) -> None:
        _close(self._files)

    def _path(self, size: int) -> Path:
        return self.folder / f"states-{size}.bin"

    def _file(self, size: int, flags: int) -> int:
        if (size, flags) not in self._files:
            self._files[size, flags] = os.open(self._path(size), flags, 0o644)
        return self._files[size, flags]


def _close(files: dict[tuple[int, int], int]) -> None:
    for file in files.values():
        os.close(file)
    files.clear()
