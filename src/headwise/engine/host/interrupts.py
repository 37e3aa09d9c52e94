"""Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def stop_after_round() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C lets the round finish and leaves a resumable run; the second one stops at once."""
    requested = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield requested.is_set
        return

    def ask(*_: object) -> None:
        if requested.is_set():
            raise KeyboardInterrupt
        requested.set()

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield requested.is_set
    finally:
        signal.signal(signal.SIGINT, before)
