"""This process: its devices, clock, memory, threads and garbage collector, Ctrl-C and time limits."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import re
import resource
import signal
import sys
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from ..data.federated import Samples
from ..errors import ConfigError
from ..memory import settle

T = TypeVar("T", bound="Tensor | nn.Module")


def check_device(device: str) -> None:
    try:
        with warnings.catch_warnings(action="ignore"):  # torch's warnings about old devices
            torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError) as error:
        raise ConfigError(f"engine.device is {device!r}, which this machine does not have.") from error


def device_of(worker: int, device: str) -> str:
    """The device of this worker: with ``cuda``, workers share all GPUs evenly."""
    return f"cuda:{worker % torch.cuda.device_count()}" if device == "cuda" else device


def move_to(value: T, device: str) -> T:
    """Move to this device; for the CPU, return as is without a check, which saves time."""
    return value if device == "cpu" else value.to(device)  # pyright: ignore[reportReturnType]


def samples_on(samples: Samples, device: str) -> Samples:
    if device == "cpu":
        return samples
    weight = None if samples.weight is None else samples.weight.to(device)
    return Samples(samples.x.to(device), samples.y.to(device), weight)


def home(t: Tensor) -> Tensor:
    """The tensor in main memory, detached, and laid out as if read from a message."""
    return settle(t if t.is_cpu and not t.requires_grad else t.detach().cpu())


class Clock:
    """Seconds by section; `method` is what a method does itself between two calls to its bench."""

    def __init__(self, section: str = "method") -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.memory: dict[int, int] = {}
        """peak memory in bytes of each worker process, by pid"""
        self.start(section)

    def start(self, section: str = "method") -> None:
        """Start charging this section now; earlier time is not charged."""
        self.section = section
        self._since = time.perf_counter()

    def stop(self) -> None:
        """Charge the current section up to now."""
        self.to(self.section)

    def to(self, section: str) -> None:
        """Charge this section from now on."""
        now = time.perf_counter()
        self.seconds[self.section] += now - self._since
        self.section = section
        self._since = now

    def add(self, seconds: Mapping[str, float]) -> None:
        for section, spent in seconds.items():
            self.seconds[section] += spent

    @contextmanager
    def __call__(self, section: str) -> Iterator[None]:
        """Charge this section inside the block, then the previous one again."""
        before = self.section
        self.to(section)
        try:
            yield
        finally:
            self.to(before)


def peak_memory() -> int:
    """This process's peak memory so far, in bytes."""
    try:  # getrusage includes the peak of the process that started this one
        peak = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
        return int(peak[1]) * 1024 if peak else 0
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


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
def spare_collections() -> Iterator[None]:
    """Keep the garbage collector from scanning what exists now, which costs a sixth of a round of small clients."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def cores() -> int:
    """The cores this process may use, or all cores where the system can't tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def use_one_thread() -> Iterator[None]:
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
        logging.getLogger("headwise").warning("stopping after this round; interrupt again to stop at once")

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield requested.is_set
    finally:
        signal.signal(signal.SIGINT, before)


class Late(Exception):  # noqa: N818 - it is what happened, not a mistake
    """A client exceeded its time limit."""


class SilenceWatch:
    """Warns about work that has not ended after so many seconds, and again each time the wait has doubled.

    One thread watches the whole process, so that short pieces of work cost nothing.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._busy: dict[int, tuple[str, float, list[int]]] = {}
        """what each thread does, since when, and the warnings so far"""
        self._process = 0

    @contextmanager
    def watch(self, what: str) -> Iterator[None]:
        if self._process != os.getpid():
            self._process = os.getpid()
            threading.Thread(target=self._look, daemon=True).start()
        self._busy[threading.get_ident()] = what, time.monotonic(), [0]
        try:
            yield
        finally:
            del self._busy[threading.get_ident()]

    def _look(self) -> None:
        while True:
            time.sleep(self._seconds / 10)
            self.warn()

    def warn(self) -> None:
        for what, since, warned in list(self._busy.values()):
            silent = time.monotonic() - since
            if silent >= 2 ** warned[0] * self._seconds:
                warned[0] += 1
                logging.getLogger("headwise").warning(
                    f"{what} has not returned for {silent:,.0f} seconds: "
                    "if it never does, stop the run and set faults.deadline."
                )


WATCH = SilenceWatch(60)


@contextmanager
def limit_seconds(seconds: float | None, what: str) -> Iterator[None]:
    """Raise `Late` after `seconds`: at once in a process's main thread, elsewhere when the client is done.

    Python code can always be interrupted, but not a library call that never returns. Without a limit, warn about
    silence.
    """
    if seconds is None:
        with WATCH.watch(what):
            yield
        return
    late = Late(f"it took longer than {seconds:g} seconds")
    begun = time.monotonic()
    if threading.current_thread() is threading.main_thread():
        with _alarm(seconds, late):
            yield
    else:
        yield
    if time.monotonic() - begun > seconds:
        raise late


@contextmanager
def _alarm(seconds: float, late: Late) -> Iterator[None]:
    def raise_late(*_: object) -> None:
        raise late

    before = signal.signal(signal.SIGALRM, raise_late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
