"""Racers that take turns, so that what else the machine does slows all of them alike."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from statistics import median

import torch
from naive import Naive
from workloads import Workload, plan_of

from headwise.engine.driver import drive
from headwise.engine.events import Event, Progress, RoundEnded
from headwise.engine.executors.base import Executor
from headwise.engine.executors.local import Serial
from headwise.engine.host import spare_collections
from headwise.engine.plan import Plan


class Ours:
    """Rounds of the engine, one at a time."""

    def __init__(self, plan: Plan, executor: Executor | None = None) -> None:
        self.plan = plan
        self.executor = executor or Serial(plan)
        self.now: Progress | None = None
        self.gflop = 0.0
        """billions of operations in the last round's training, if its kernels count them"""

    def round(self, t: int) -> None:
        """The next round, with everything around it but storing."""
        before = self.now

        def keep(event: Event) -> None:
            if isinstance(event, RoundEnded):
                self.now = event.progress
                self.gflop = event.row.get("gflop", 0.0)

        drive(self.plan, self.executor, (keep,), start=before, interrupted=lambda: self.now is not before)


class Apart:
    """The naive loop in a process of its own, where memory is handled as in anybody's."""

    def __init__(self, load: Workload) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.line, theirs = spawn.Pipe()
        self.process = spawn.Process(target=_apart, args=(theirs, load), daemon=True)
        self.process.start()
        self.line.recv()

    def round(self, t: int) -> float:
        """One round; returns its CPU seconds."""
        self.line.send(t)
        return self.line.recv()

    def close(self) -> None:
        """End the process."""
        self.line.send(None)
        self.process.join()


def _apart(line: Connection, load: Workload) -> None:
    torch.set_num_threads(1)
    racer = Naive(plan_of(load))
    line.send("ready")
    while (t := line.recv()) is not None:
        begun = time.process_time()
        racer.round(t)
        line.send(time.process_time() - begun)


def race(racers: Mapping[str, Callable[[], object]], repetitions: int, clock: Callable[[], float]) -> dict[str, float]:
    """The median time of each, after one turn to warm up; they take turns."""
    times: dict[str, list[float]] = {name: [] for name in racers}
    with spare_collections():
        for _ in range(1 + repetitions):
            for name, run in racers.items():
                begun = clock()
                seconds = run()  # a process of its own tells its time itself
                times[name].append(seconds if isinstance(seconds, float) else clock() - begun)
    return {name: median(of_turns[1:]) for name, of_turns in times.items()}


def several(run: Callable[[int], float | None], rounds: int) -> float | None:
    """Some rounds one after the other; what they took if they tell."""
    seconds = [run(1) for _ in range(rounds)]
    return sum(t for t in seconds if t is not None) if seconds[0] is not None else None
