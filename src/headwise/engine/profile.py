"""Where a round's time goes, by the driver's watch and by the workers' clocks."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import cast

from ..log.schema import Seconds
from .executors.base import Executor

WAITING = ("train", "evaluate")
"""laps in which the driver waits for workers"""


class Stopwatch:
    """Times one round. Laps are the driver's; the executor's clock says what workers did meanwhile."""

    def __init__(self, executor: Executor) -> None:
        self._executor, self._before = executor, dict(executor.clock.seconds)
        self._begun = self._last = time.perf_counter()
        self._laps: dict[str, float] = defaultdict(float)

    def lap(self, name: str) -> None:
        """Charge the time since the last lap to this one."""
        now = time.perf_counter()
        self._laps[name] += now - self._last
        self._last = now

    def seconds(self, stored: float) -> Seconds:
        """The whole round, its laps, and what all workers together did in them; `idle` is the rest."""
        spent = {k: v - self._before.get(k, 0.0) for k, v in self._executor.clock.seconds.items()}
        waited = self._executor.workers * sum(self._laps[name] for name in WAITING)
        spent["idle"] = max(0.0, waited - sum(spent.values()))
        workers = {k: round(v, 6) for k, v in spent.items()}
        whole = {"round": time.perf_counter() - self._begun}
        return cast(Seconds, {**whole, **self._laps, "workers": workers, "stored": stored})
