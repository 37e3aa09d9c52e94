"""Ports on this machine: who has one, and whether it is free."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ...errors import ConfigError

PATIENCE = 5.0
"""seconds to wait for a port: a command that was just killed may still hold it"""
LISTENS = "0A"
"""the state of a listening socket in /proc/net/tcp"""


def wait_until_free(option: str, host: str, port: int) -> None:
    """Wait for a port that was used until just now; refuse one that somebody else keeps."""
    until = time.monotonic() + PATIENCE
    while why := _taken(host, port):
        if time.monotonic() > until:
            who = holder(port)
            by = f"process {who[0]} ({who[1]}) listens there: stop it, or" if who else f"it can't be used ({why}):"
            raise ConfigError(f"{option} is {port}, but {by} choose another port.")
        time.sleep(0.2)


def listens(host: str, port: int) -> bool:
    """Whether somebody listens there."""
    try:
        socket.create_connection((host, port), PATIENCE).close()
    except OSError:
        return False
    return True


def _taken(host: str, port: int) -> str | None:
    """Why one can't listen there; None if one can."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
            trial.listen()
        except OSError as error:
            return error.strerror or str(error)
    return None


def holder(port: int) -> tuple[int, str] | None:
    """The process that listens on this port, and its command; None if the system does not say."""
    sockets = {f"socket:[{number}]" for number in _listening(port)}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # another user's process, or one that has just ended
            if any(os.readlink(each) in sockets for each in (folder / "fd").iterdir()):
                words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
                return int(folder.name), " ".join(words).strip()[:100]
    return None


def _listening(port: int) -> Iterator[str]:
    """The inode numbers of sockets that listen on this port."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                parts = line.split()
                if parts[3] == LISTENS and int(parts[1].rpartition(":")[2], 16) == port:
                    yield parts[9]
