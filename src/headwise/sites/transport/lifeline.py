"""One life: what a command of Headwise starts ends with it, however it ends.

The command holds the writing end of its children's standard input, which their own children inherit. Once the command
is gone, even by `kill -9`, everybody who reads there sees the end. On Linux, the worker is killed by the system itself,
whatever it computes.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
import time
from typing import Any

from ...disk.jsontext import to_json

GRACE = 2.0
"""seconds for leaving properly, before a process and its own children are killed"""
EVENTS = "HEADWISE_EVENTS"
"""environment variable: the file descriptor on which a child reports to the command"""
PR_SET_PDEATHSIG = 1
GONE = select.POLLHUP | select.POLLERR | select.POLLNVAL


def bind(leave: signal.Signals = signal.SIGTERM) -> None:
    """Bind this process's life to that of the command: once it is gone, `leave`, and after a while be killed."""
    if sys.platform == "linux" and leave == signal.SIGKILL:  # any other signal could end us before our own children
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(leave))
    threading.Thread(target=_watch, args=(leave,), daemon=True).start()


def _watch(leave: signal.Signals) -> None:
    line = select.poll()
    line.register(0, 0)  # its end only: what is written there is for somebody else
    while not any(found & GONE for _, found in line.poll()):
        pass
    os.killpg(0, leave)  # each child of the command has a group of its own
    time.sleep(GRACE)
    os.killpg(0, signal.SIGKILL)


def received_secret() -> str:
    """The secret that the command wrote to this child's standard input."""
    found = b""
    while not found.endswith(b"\n"):
        if not (byte := os.read(0, 1)):
            raise SystemExit(1)  # the command is already gone
        found += byte
    return found.decode().strip()


def tell(**event: Any) -> None:
    """Report to the command."""
    os.write(int(os.environ[EVENTS]), (to_json(event) + "\n").encode())
