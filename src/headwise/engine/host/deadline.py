"""A client's time limit."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Late(Exception):  # noqa: N818 - it is what happened, not a mistake
    """A client exceeded its time limit."""


@contextmanager
def within(seconds: float | None) -> Iterator[None]:
    """Raise `Late` after `seconds`: at once in a process's main thread, elsewhere when the client is done.

    Python code can always be interrupted, but not a library call that never returns.
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
