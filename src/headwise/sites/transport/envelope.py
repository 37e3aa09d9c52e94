"""What travels between a server and a site, as bytes, and the socket between a site's node and its worker.

Imports no torch: the processes that carry messages must stay light.
"""

from __future__ import annotations

import hmac
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Literal, NamedTuple

from ...disk.jsontext import to_json
from ...errors import RunError

LARGEST_MEGABYTES = 500
"""of a message that a site accepts unless site.toml says otherwise"""
SOCKET = "worker.sock"
"""socket in the site's folder, which must be the current one: socket names are limited to about 100 bytes"""
WORKER_TRIES = 3
"""workers that may die of one message"""
WORKER_SECONDS = 300.0
"""seconds to wait for a worker that starts"""
WORKER_POLL_SECONDS = 0.1


class SiteMessage(NamedTuple):
    text: str
    records: list[bytes]

    @property
    def size(self) -> int:
        """Characters of text plus bytes of records; the transport adds its own overhead."""
        return len(self.text) + sum(map(len, self.records))


class Lost(NamedTuple):
    """Stands in for a reply that did not come, or that can't be used."""

    why: str
    reason: Literal["no answer", "late", "dropped", "refused"] = "no answer"
    """dropped: the round's sum was opened without this node; refused: by the site, or its reply by the server"""


class NodeSeen(NamedTuple):
    since: str = ""
    """when it connected: after a restart, what was sent before is lost"""
    name: str = ""
    """name as registered at the server; empty if unknown"""


def make_printable(text: str) -> str:
    """A text from another machine, safe for a terminal and a log."""
    return "".join(c if c.isprintable() else " " for c in text[:2000])


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def format_time(time: str) -> str:
    """A time of `now` or of Flower's, as people read it."""
    return time.replace("T", " ").replace("+00:00", " UTC").replace("Z", " UTC")


AnswerMessage = Callable[[str, SiteMessage], SiteMessage]
"""from the kind of a message, train or query, and the message"""


class WorkerLine:
    """Hands messages to the site's worker; one that dies is replaced, and its successor gets the message again."""

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._line: Connection | None = None
        self._lock = threading.Lock()

    def ask(self, kind: str, message: SiteMessage) -> SiteMessage:
        """One message at a time, from whatever thread."""
        for _ in range(WORKER_TRIES):
            with self._lock:
                line = self._connect()
                try:
                    _send(line, kind, message)
                    return _receive(line)[1]
                except (EOFError, OSError):
                    line.close()
                    self._line = None
        raise RunError(f"the site's worker died {WORKER_TRIES} times of one message: its log says more.")

    def _connect(self) -> Connection:
        until = time.monotonic() + WORKER_SECONDS
        while self._line is None:
            try:
                self._line = Client(SOCKET, "AF_UNIX")
                self._line.send_bytes(self._secret.encode())
            except OSError as error:
                self._line = None
                if time.monotonic() > until:
                    raise RunError("the site's worker does not start: its log says more.") from error
                time.sleep(WORKER_POLL_SECONDS)
        return self._line


def serve_node(secret: str, answer: AnswerMessage, ready: Callable[[], None]) -> None:
    """Answer a node that knows the secret, one message at a time, forever; only the owner can connect."""
    Path(SOCKET).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o077)
    try:
        listener.bind(SOCKET)
    finally:
        os.umask(before)
    listener.listen(1)
    ready()
    while True:
        with Connection(listener.accept()[0].detach()) as line:
            try:
                if hmac.compare_digest(line.recv_bytes(1000), secret.encode()):
                    while True:
                        _send(line, "", answer(*_receive(line)))
            except (EOFError, OSError):
                continue  # the node has gone, and comes back


def _send(line: Connection, kind: str, message: SiteMessage) -> None:
    line.send_bytes(to_json({"kind": kind, "text": message.text, "records": len(message.records)}).encode())
    for record in message.records:
        line.send_bytes(record)


def _receive(line: Connection) -> tuple[str, SiteMessage]:
    head = json.loads(line.recv_bytes())
    return head["kind"], SiteMessage(head["text"], [line.recv_bytes() for _ in range(head["records"])])
