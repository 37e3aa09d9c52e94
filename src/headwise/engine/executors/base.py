"""The contract of an executor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from ..events import ClientDone, Observer
from ..state import ClientState
from ..worker import Answer, Job


class Executor(Protocol):
    """Where clients live: in this process, in a pool of processes, on other machines."""

    @property
    def states(self) -> Mapping[int, ClientState]:
        """The states of the clients that have trained, as far as they are kept here."""
        ...

    def run(self, jobs: Iterable[Job]) -> Iterator[Answer]:
        """Do the jobs, in any order; training also renews the client's state."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


def collect(executor: Executor, jobs: list[Job], tell: Observer) -> dict[int, Answer]:
    """All answers in client order, whatever the order they came in."""
    answers: dict[int, Answer] = {}
    for a in executor.run(jobs):
        answers[a.client] = a
        tell(ClientDone(jobs[0].t, a.client, a.task, a.samples))
    return dict(sorted(answers.items()))
