"""How a process computes: its threads, its memory, its garbage collector."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # from <malloc.h>


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
