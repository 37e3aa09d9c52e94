"""One client after the other, in this process: the reference that every other executor must equal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ..plan import Plan
from ..state import ClientState
from ..worker import Answer, Job, handle


class Serial:
    """All clients in this process."""

    def __init__(self, plan: Plan, states: Mapping[int, ClientState] | None = None) -> None:
        self.plan, self.states = plan, dict(states or {})

    def run(self, jobs: Iterable[Job]) -> Iterator[Answer]:
        """Do the jobs in their order."""
        for job in jobs:
            answer, state = handle(self.plan, job, self.states.get(job.client))
            if state is not None:
                self.states[job.client] = state
            yield answer

    def close(self) -> None:
        """Nothing to give back."""
