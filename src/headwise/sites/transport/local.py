"""The socket between a site's node and its worker: only its owner can open it, and it wants a secret first."""

from __future__ import annotations

import hmac
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Client, Connection
from pathlib import Path

from ...disk.jsontext import to_json
from ...errors import RunError
from .envelope import SiteMessage

SOCKET = "worker.sock"
"""in the site's folder, which must be the current one: such names have a limit of about 100 bytes"""
TRIES = 3
"""workers that may die of one message"""
PATIENCE, PAUSE = 300.0, 0.1
"""seconds to wait for a worker that starts, and between looks"""

Answers = Callable[[str, SiteMessage], SiteMessage]
"""from the kind of a message, train or query, and the message"""


class Courier:
    """Hands messages to the site's worker; one that dies is replaced, and its successor gets the message again."""

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._line: Connection | None = None
        self._lock = threading.Lock()

    def ask(self, kind: str, message: SiteMessage) -> SiteMessage:
        """One message at a time, whoever asks."""
        for _ in range(TRIES):
            with self._lock:
                line = self._connected()
                try:
                    _send(line, kind, message)
                    return _receive(line)[1]
                except (EOFError, OSError):
                    line.close()
                    self._line = None
        raise RunError(f"the site's worker died {TRIES} times of one message: its log says more.")

    def _connected(self) -> Connection:
        until = time.monotonic() + PATIENCE
        while self._line is None:
            try:
                self._line = Client(SOCKET, "AF_UNIX")
                self._line.send_bytes(self._secret.encode())
            except OSError as error:
                self._line = None
                if time.monotonic() > until:
                    raise RunError("the site's worker does not start: its log says more.") from error
                time.sleep(PAUSE)
        return self._line


def serve(secret: str, answer: Answers, ready: Callable[[], None]) -> None:
    """Answer one message after the other, for ever."""
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
