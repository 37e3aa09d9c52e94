"""How memory is given back."""

from __future__ import annotations

import ctypes
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # as <malloc.h> numbers them


def keep_freed_memory() -> None:
    """Let the C library keep what is freed for the next step, which needs as much again.

    By default it returns large blocks to the system after every step, and the next one pays for a page fault per 4 KB:
    up to a fifth of the time with large batches or networks. Only glibc has this switch.
    """
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(MMAP_THRESHOLD, 32 * 2**20)  # the most that it takes
        library.mallopt(TRIM_THRESHOLD, 2**31 - 1)
