"""All clients in this process: the reference that every other executor must match bit for bit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..client.jobs import Answer, Job, handle
from ..client.state import States
from ..host.clock import Clock
from ..plan import Plan
from .base import Setup, states_of


class Serial:
    """Handles one client after the other."""

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


def make(setup: Setup) -> Serial:
    return Serial(setup.plan, setup.states)
