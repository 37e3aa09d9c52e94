"""All clients in this process: one after the other, or spread over threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd  # pyright: ignore[reportPrivateUsage]

from ...errors import ConfigError
from ..client.jobs import Answer, Handled, Job, handle
from ..client.state import ClientState, States
from ..host import Clock
from ..plan import Plan
from .base import Setup, balance, states_of


class Serial:
    """Handles one client after the other: the reference that every other executor must match bit for bit."""

    workers = 1

    def __init__(self, plan: Plan, states: States | None = None) -> None:
        self.plan = plan
        self.states = states_of(plan, states)
        self.clock = Clock()

    def run(self, jobs: Iterable[Job]) -> Iterator[Answer]:
        for job in jobs:
            self.clock.start()
            answer, state = handle(self.plan, job, self.states.get(job.client), self.clock)
            self.clock.stop()
            if state is not None:
                self.states[answer.client] = state
            yield answer

    def close(self) -> None:
        pass


class RecordingExecutor(Serial):
    """Keeps every job and its answer, to see what a method sends."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.handled: list[tuple[Job, Answer]] = []

    def run(self, jobs: Iterable[Job]) -> Iterator[Answer]:
        for job in jobs:
            for answer in super().run([job]):
                self.handled.append((job, answer))
                yield answer


def make_serial(setup: Setup) -> Serial:
    return Serial(setup.plan, setup.states)


class Threads:
    """A few threads with one intra-op thread each: nothing is copied, and torch releases Python's lock."""

    def __init__(self, plan: Plan, workers: int, states: States | None = None) -> None:
        for model in plan.models:
            if any(isinstance(m, (_DropoutNd, nn.RNNBase, nn.MultiheadAttention, nn.RReLU)) for m in model.modules()):
                raise ConfigError(
                    f"engine.workers is 'threads:{workers}', but {type(model).__name__} draws random numbers, "
                    "and threads share one generator: use processes."
                )
        self.plan = plan
        self.workers = workers
        self.states = states_of(plan, states)
        self.clock = Clock()
        self._pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))

    def run(self, jobs: Iterable[Job]) -> Iterator[Answer]:
        groups = balance(list(jobs), self.plan, self.workers)
        futures = [self._pool.submit(self._work, [(j, self.states.get(j.client)) for j in group]) for group in groups]
        try:
            for future in as_completed(futures):
                done, clock = future.result()
                self.clock.add(clock.seconds)
                for answer, state in done:
                    if state is not None:
                        self.states[answer.client] = state
                    yield answer
        finally:
            for future in futures:
                future.cancel()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _work(self, assigned: list[tuple[Job, ClientState | None]]) -> tuple[list[Handled], Clock]:
        clock = Clock()
        done = [handle(self.plan, job, state, clock, seeded=False) for job, state in assigned]
        clock.stop()
        return done, clock


def make_threads(setup: Setup) -> Threads:
    return Threads(setup.plan, setup.workers, setup.states)
