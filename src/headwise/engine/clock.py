"""Where the time went: at every moment one section is charged."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class Clock:
    """Seconds by section; `method` is what a method does itself between two calls of its bench."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
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
