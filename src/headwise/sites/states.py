"""Personal states in a site's own folder: one safetensors file per run, client and round.

The server never sees them, only their digests. The site reports a digest after training; the next message from the
server names the state to start from. If the server names an older one, the last reply was late or lost, and the client
trains again from there.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from ..disk.files import digest as digest_of
from ..disk.files import read_bytes, write_bytes
from ..errors import RunError

RUN = re.compile(r"[0-9a-z-]{1,64}")
CLIENT = re.compile(r"client-(0|[1-9]\d{0,9})", re.ASCII)
NAME = re.compile(r"round-(\d{7,10})-([0-9a-f]{64})\.safetensors", re.ASCII)


class Version(NamedTuple):
    """A client's state after one of its rounds."""

    t: int
    digest: str
    path: Path


class SiteStates:
    def __init__(self, folder: Path, run: str) -> None:
        if not RUN.fullmatch(run):  # comes from the server and becomes a folder name
            raise RunError(f"run is {run!r}, but must be 1 to 64 lower-case letters, digits and dashes.")
        self.folder = folder / run

    def versions(self, client: int) -> list[Version]:
        """Oldest first."""
        files = self._home(client).glob("round-*.safetensors")
        return sorted(Version(int(m[1]), m[2], path) for path in files if (m := NAME.fullmatch(path.name)))

    def take(self, client: int, digest: str) -> bytes | None:
        """The state that the server names; None if the digest is empty because the client has never trained."""
        if not digest:
            return None
        path = next((v.path for v in self.versions(client) if v.digest == digest), None)
        if path is None:
            raise RunError(f"{self._home(client)} has no state {digest[:12]}, which the server accepted last.")
        data = read_bytes(path)
        if digest_of(data) != digest:
            raise RunError(f"{path} is damaged: its content does not match the digest in its name.")
        return data

    def put(self, client: int, t: int, data: bytes, after: str) -> str:
        """Store the state that training made from the state `after`; return its digest.

        `after` and its predecessor stay as well: the server may lose this reply, and its newest checkpoint.
        """
        digest = digest_of(data)
        write_bytes(self._home(client) / f"round-{t:07}-{digest}.safetensors", data, parents=True)
        versions = self.versions(client)
        base = next((v.t for v in versions if v.digest == after), t)
        older = [v for v in versions if v.t < base]
        kept = {digest, after, *(v.digest for v in (older[-1:] if after else older))}
        for v in versions:
            if v.digest not in kept or (v.digest == digest and v.t != t):
                v.path.unlink(missing_ok=True)
        return digest

    def remember(self, experiment: str) -> None:
        """Store the run's experiment: a personal model stays usable after the server is gone."""
        path = self.folder / "experiment.json"
        if not path.exists():
            write_bytes(path, experiment.encode(), parents=True)

    def experiment(self) -> str:
        path = self.folder / "experiment.json"
        try:
            return read_bytes(path).decode()
        except UnicodeDecodeError as error:
            raise RunError(f"{path} is damaged: it is not valid UTF-8.") from error

    def put_download(self, client: int, data: bytes) -> None:
        """Store the last download: a personal model is made from it and the client's state."""
        write_bytes(self._home(client) / "download.safetensors", data, parents=True)

    def download(self, client: int) -> bytes:
        return read_bytes(self._home(client) / "download.safetensors")

    def clients(self) -> list[int]:
        """Clients with a folder here; anything else in the run's folder is ignored."""
        names = (CLIENT.fullmatch(path.name) for path in self.folder.glob("client-*") if path.is_dir())
        return sorted(int(name[1]) for name in names if name)

    def _home(self, client: int) -> Path:
        return self.folder / f"client-{int(client)}"


def runs_in(folder: Path) -> list[str]:
    """Names of the run folders here; anything else is ignored."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted(p.name for p in paths if RUN.fullmatch(p.name) and p.is_dir())
