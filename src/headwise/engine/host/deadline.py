"""How long a client may take."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Late(Exception):  # noqa: N818 - it is what happened, not a mistake
    """A client has taken longer than it may."""


@contextmanager
def within(seconds: float | None) -> Iterator[None]:
    """Raise `Late` when so much time is over: at once in a process's main thread, else when the client is done.

    A call into a library that never returns can't be interrupted; all of Python can.
    """
    if seconds is None:
        yield
        return
    late, begun = Late(f"it took longer than {seconds:g} seconds"), time.monotonic()
    if threading.current_thread() is threading.main_thread():
        with _alarm(seconds, late):
            yield
    else:
        yield
    if time.monotonic() - begun > seconds:
        raise late


@contextmanager
def _alarm(seconds: float, late: Late) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise late

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
