"""Checkpoints: after each round, what the next one needs to give the same bits.

A round writes the server's state and those of the clients that trained into files of their own, then names them all,
with their checksums, in ``index-<round>.json``. Only when that file is there does the round count. The last two are
kept; a damaged one is passed over for the one before it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..engine.events import Progress
from ..engine.state import ClientState, decode_state, encode_state
from ..errors import RunError
from ..method import RecordTypes
from ..records import RecordError, decode, encode
from .files import checksum, write_bytes, write_json

KEPT = 2


class Checkpoint(NamedTuple):
    """Where a run can go on."""

    progress: Progress
    states: dict[int, ClientState]
    sizes: dict[str, int]
    """how long the run's line files were"""


class Checkpoints:
    """The checkpoints in one folder."""

    def __init__(self, folder: Path, types: RecordTypes) -> None:
        self.folder, self.types = folder, types
        self._clients: dict[str, Any] = {}
        self._replaced: list[str] = []
        """files that only the checkpoint before the last one needs"""

    def save(self, progress: Progress, changed: Mapping[int, ClientState], sizes: Mapping[str, int]) -> None:
        """Write this round's checkpoint, then remove what no kept checkpoint needs."""
        self.folder.mkdir(exist_ok=True)
        t = progress.t
        replaced = [self._clients[str(c)][0] for c in changed if str(c) in self._clients]
        for c, state in changed.items():
            self._clients[str(c)] = self._put(f"client-{c}-{t}", encode_state(state))
        index = {
            "round": t,
            "server": self._put(f"server-{t}", encode(progress.server)),
            "clients": self._clients,
            "carry": progress.carry,
            "sizes": dict(sizes),
        }
        text = json.dumps(index)
        write_json(self.folder / _index(t), {"crc": checksum(text.encode()), "index": text})
        self._remove([*self._replaced, _server(t - KEPT), _index(t - KEPT)])
        self._replaced = replaced

    def load(self) -> Checkpoint | None:
        """The newest checkpoint that is whole; None if there is none at all."""
        problems: list[str] = []
        for path in sorted(self.folder.glob("index-*.json"), reverse=True):
            try:
                found = self._read(path)
            except (RecordError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                problems.append(f"{path.name}: {error}")
            else:
                return found
        if problems:
            raise RunError(f"{self.folder} holds no checkpoint that is whole ({'; '.join(problems)}).")
        return None

    def tidy(self, t: int) -> None:
        """Before going on after round t: remove what a crash, or a damaged later checkpoint, left behind."""
        needed = {_server(t), _index(t), *(name for name, _ in self._clients.values())}
        self._remove([p.name for p in self.folder.iterdir() if p.name not in needed])

    def _read(self, path: Path) -> Checkpoint:
        outer = json.loads(path.read_bytes())
        if checksum(outer["index"].encode()) != outer["crc"]:
            raise ValueError("its checksum does not fit")
        index = json.loads(outer["index"])
        states = {int(c): decode_state(self.types.client, self._get(w)) for c, w in index["clients"].items()}
        server = decode(self.types.server, self._get(index["server"]))
        self._clients = index["clients"]
        return Checkpoint(Progress(index["round"], server, index["carry"]), states, index["sizes"])

    def _put(self, stem: str, data: bytes) -> list[Any]:
        write_bytes(self.folder / f"{stem}.safetensors", data)
        return [f"{stem}.safetensors", checksum(data)]

    def _get(self, where: list[Any]) -> bytes:
        name, crc = where
        data = (self.folder / Path(name).name).read_bytes()
        if checksum(data) != crc:
            raise ValueError(f"{name} is damaged: its checksum does not fit")
        return data

    def _remove(self, names: list[str]) -> None:
        for name in names:
            (self.folder / name).unlink(missing_ok=True)


def _index(t: int) -> str:
    return f"index-{t:07}.json"


def _server(t: int) -> str:
    return f"server-{t}.safetensors"
