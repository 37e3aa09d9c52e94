"""Where time goes: at any moment, exactly one section is charged."""

from __future__ import annotations

import re
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


class Clock:
    """Seconds by section; `method` is what a method does itself between two calls to its bench."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.memory: dict[int, int] = {}
        """peak memory in bytes of each worker process, by pid"""
        self.start()

    def start(self) -> None:
        """Start charging now; earlier time is not charged."""
        self.section, self._since = "method", time.perf_counter()

    def stop(self) -> None:
        """Charge the current section up to now."""
        self.to("method")

    def to(self, section: str) -> None:
        """Charge this section from now on."""
        now = time.perf_counter()
        self.seconds[self.section] += now - self._since
        self.section, self._since = section, now

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
