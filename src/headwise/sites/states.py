"""Personal states in a site's own folder: one safetensors file for each run, client and round.

The server never has them. It knows a state by its digest, which the site reports after training and the server names
in its next message. A state that the server names was taken, and later states start from it. One that it does not name
belongs to a reply that came too late or got lost: the client starts again from the one before.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import NamedTuple

from ..disk.files import failing_clearly, write_bytes
from ..errors import RunError

RUN = re.compile(r"[0-9a-z-]{1,64}")
CLIENT = re.compile(r"client-(0|[1-9]\d{0,9})", re.ASCII)
NAME = re.compile(r"round-(\d{7,10})-([0-9a-f]{64})\.safetensors", re.ASCII)


class Version(NamedTuple):
    """A client's state after one of its rounds."""

    t: int
    digest: str
    path: Path


def digest_of(data: bytes) -> str:
    """What a state is known by."""
    return hashlib.sha256(data).hexdigest()


class SiteStates:
    """The states of one run's clients at one site."""

    def __init__(self, folder: Path, run: str) -> None:
        if not RUN.fullmatch(run):  # it comes from the server, and names a folder
            raise RunError(f"run is {run!r}, but must be small letters, digits and dashes.")
        self.folder = folder / run

    def versions(self, client: int) -> list[Version]:
        """The kept states of a client, the oldest first."""
        files = self._home(client).glob("round-*.safetensors")
        return sorted(Version(int(m[1]), m[2], path) for path in files if (m := NAME.fullmatch(path.name)))

    def take(self, client: int, digest: str) -> bytes | None:
        """The state that the server names; None if it never had a reply of this client."""
        if not digest:
            return None
        found = next((v for v in self.versions(client) if v.digest == digest), None)
        if found is None:
            raise RunError(f"{self._home(client)} has no state {digest[:12]}, which the server took last.")
        try:
            data = found.path.read_bytes()
        except OSError as error:
            raise RunError(f"{found.path} can't be read: {error.strerror}.") from error
        if digest_of(data) != digest:
            raise RunError(f"{found.path} is damaged: it does not fit its name.")
        return data

    def put(self, client: int, t: int, data: bytes, after: str) -> str:
        """Keep a new state, which came from the one `after`; return its digest.

        That one and the one before it are kept too: the server may have lost this reply, and its newest checkpoint.
        """
        digest, home = digest_of(data), self._home(client)
        with failing_clearly(home):
            home.mkdir(parents=True, exist_ok=True)
        write_bytes(home / f"round-{t:07}-{digest}.safetensors", data)
        versions = self.versions(client)
        base = next((v.t for v in versions if v.digest == after), t)
        older = [v for v in versions if v.t < base]
        kept = {digest, after, *(v.digest for v in (older[-1:] if after else older))}
        for v in versions:
            if v.digest not in kept or (v.digest == digest and v.t != t):
                v.path.unlink(missing_ok=True)
        return digest

    def remember(self, experiment: str) -> None:
        """Keep the run's experiment: with it a personal model can be used when the server is long gone."""
        path = self.folder / "experiment.json"
        if not path.exists():
            with failing_clearly(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
            write_bytes(path, experiment.encode())

    def experiment(self) -> str:
        """The run's experiment."""
        path = self.folder / "experiment.json"
        try:
            return path.read_text(encoding="utf-8")
        except OSError as error:
            raise RunError(f"{path} can't be read: {error.strerror}.") from error
        except ValueError as error:
            raise RunError(f"{path} is damaged: it is not a text.") from error

    def put_download(self, client: int, data: bytes) -> None:
        """Keep what the client was sent last: its model is made of that and its state."""
        home = self._home(client)
        with failing_clearly(home):
            home.mkdir(parents=True, exist_ok=True)
        write_bytes(home / "download.safetensors", data)

    def download(self, client: int) -> bytes:
        """What the client was sent last."""
        path = self._home(client) / "download.safetensors"
        try:
            return path.read_bytes()
        except OSError as error:
            raise RunError(f"{path} can't be read: {error.strerror}.") from error

    def clients(self) -> list[int]:
        """Those that have something here; other people's folders are not ours to judge."""
        found = ((CLIENT.fullmatch(p.name), p) for p in self.folder.glob("client-*"))
        return sorted(int(name[1]) for name, path in found if name and path.is_dir())

    def _home(self, client: int) -> Path:
        return self.folder / f"client-{int(client)}"


def runs_in(folder: Path) -> list[str]:
    """The runs that have a folder here; whatever else lies beside them is left alone."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(p.name for p in found if RUN.fullmatch(p.name) and p.is_dir())
