"""All clients in this process: the reference that every other executor must match bit for bit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..client.jobs import Answer, Job, handle_all
from ..client.state import States
from ..host.clock import Clock
from ..plan import Plan
from .base import Setup, side_by_side_limit, states_of


class Serial:
    """Handles as many clients side by side as memory allows, or `together` of them."""

    workers = 1

    def __init__(self, plan: Plan, states: States | None = None, *, together: int | None = None) -> None:
        self.plan = plan
        self.states = states_of(plan, states)
        self._together = together or side_by_side_limit(plan)
        self.clock = Clock()

    def run(self, jobs: Iterable[Job]) -> Iterator[Answer]:
        todo = list(jobs)
        for at in range(0, len(todo), self._together):
            assigned = [(job, self.states.get(job.client)) for job in todo[at : at + self._together]]
            self.clock.start()
            done = handle_all(self.plan, assigned, self.clock)
            self.clock.stop()
            for answer, state in done:
                if state is not None:
                    self.states[answer.client] = state
                yield answer

    def close(self) -> None:
        pass


def make(setup: Setup) -> Serial:
    return Serial(setup.plan, setup.states)
