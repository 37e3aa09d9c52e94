"""Where the time went: at every moment one section is charged."""

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
    """Seconds by section; `method` is what a method does itself between two calls of its bench."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.memory: dict[int, int] = {}
        """the most bytes that each other process has needed so far"""
        self.start()

    def start(self) -> None:
        """Time that went by before is not charged."""
        self.section, self._since = "method", time.perf_counter()

    def stop(self) -> None:
        """Charge what is open."""
        self.to("method")

    def to(self, section: str) -> None:
        """From now on, charge this section."""
        now = time.perf_counter()
        self.seconds[self.section] += now - self._since
        self.section, self._since = section, now

    def add(self, seconds: Mapping[str, float]) -> None:
        """What another clock found."""
        for section, spent in seconds.items():
            self.seconds[section] += spent

    @contextmanager
    def __call__(self, section: str) -> Iterator[None]:
        """Charge this section inside, then the one before again."""
        before = self.section
        self.to(section)
        try:
            yield
        finally:
            self.to(before)


def peak_memory() -> int:
    """The most bytes that this process has needed so far."""
    try:  # what getrusage tells includes the peak of the process that started this one
        found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
        return int(found[1]) * 1024 if found else 0
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
