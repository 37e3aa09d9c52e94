"""Clients side by side in one thread: each runs until it asks for work that is cheaper in a batch.

A client is a greenlet, so a method's code needs no ``await``: `ask` waits until every other client of the group has
asked, too, or is done; then the requested work is done together, and all clients continue.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from greenlet import getcurrent, greenlet

from ..host.clock import Clock

T = TypeVar("T")


class Work(ABC):
    """Work that a client asks for; it stores its results where the client finds them."""

    section: ClassVar[str]
    """its name in the clock"""

    @property
    @abstractmethod
    def key(self) -> Hashable:
        """Work with equal keys may be done together."""

    @abstractmethod
    def together(self, others: Sequence[Any]) -> None:
        """Do this work and the others, which have equal keys; no result may depend on the others."""


class _Client(greenlet):
    def __init__(self, task: Callable[[], Any], clock: Clock, seeded: bool) -> None:
        greenlet.__init__(self, task)
        self.clock, self.seeded = clock, seeded


def ask(work: Work) -> None:
    """Return when the work is done, together with other clients' work if there is any."""
    client = getcurrent()
    if not isinstance(client, _Client):
        work.together([])
        return
    section, grad = client.clock.section, torch.is_grad_enabled()
    random = torch.random.get_rng_state() if client.seeded else None
    assert client.parent is not None  # runs `side_by_side`
    client.parent.switch(work)
    if random is not None:
        torch.random.set_rng_state(random)
    _set_grad_enabled(grad)
    client.clock.to(section)


def _set_grad_enabled(grad: bool) -> None:
    if torch.is_grad_enabled() != grad:  # asking is cheaper than setting
        torch.set_grad_enabled(grad)


def side_by_side(tasks: Sequence[Callable[[], T]], clock: Clock, *, seeded: bool = True) -> list[T]:
    """What the tasks return, in order; an exception in one ends all.

    If `seeded`, each task keeps its own state of torch's global generator.
    """
    clients = [_Client(task, clock, seeded) for task in tasks]
    grad = torch.is_grad_enabled()

    def go_on(client: _Client) -> Any:
        """Run until it asks or ends, then restore the grad mode for the next client."""
        found = client.switch()
        _set_grad_enabled(grad)
        return found

    try:
        found = [go_on(client) for client in clients]
        while waiting := [i for i, c in enumerate(clients) if not c.dead]:
            _do([found[i] for i in waiting], clock)
            for i in waiting:
                found[i] = go_on(clients[i])
        return found
    finally:
        for client in clients:
            if client:  # started but not finished: another client failed
                client.throw()


def _do(works: Sequence[Work], clock: Clock) -> None:
    groups: dict[Hashable, list[Work]] = {}
    for work in works:
        groups.setdefault((type(work), work.key), []).append(work)
    for group in groups.values():
        clock.to(group[0].section)
        group[0].together(group[1:])
