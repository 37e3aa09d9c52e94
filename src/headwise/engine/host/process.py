"""This process: its threads, its memory, its garbage collector, Ctrl-C and time limits."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

TRIM_THRESHOLD = -1  # from <malloc.h>
MMAP_THRESHOLD = -3


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for the next step, which needs as much again.

    By default it returns large blocks to the system after every step, and the next step pays a page fault per 4 KB: up
    to a fifth of the time with large batches or networks. Only glibc has this switch.
    """
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(MMAP_THRESHOLD, 32 * 2**20)  # the largest value it accepts
        library.mallopt(TRIM_THRESHOLD, 2**31 - 1)


@contextmanager
def spared_collections() -> Iterator[None]:
    """Keep the collector from scanning what exists now: that costs a sixth of a round of small clients."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def cores() -> int:
    """The cores this process may use, or all cores where the system can't tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread: sums depend on the number of threads, and with one, every engine gives the same bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
