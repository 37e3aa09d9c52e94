"""Clients that lie, to see what the others still learn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace

import torch

from headwise.contract.averaging import Shared
from headwise.contract.benches import ClassMeans
from headwise.engine.client.jobs import Answer, Job
from headwise.engine.executors.base import Executor
from headwise.engine.plan import Plan
from headwise.params import Params
from headwise.records import Record
from headwise.seeds import seed_of

Attack = Callable[[Record, Record, torch.Generator], Record]
"""from what a client was sent and what it would honestly send to what it does send"""


def sign_flip(down: Record, up: Record, rng: torch.Generator) -> Record:
    """The opposite of what was learned, four times."""
    return _changed(down, up, lambda sent, learned: sent - 4.0 * (learned - sent))


def gaussian(down: Record, up: Record, rng: torch.Generator) -> Record:
    """Noise ten times as large as the model itself."""

    def noise(sent: Params, learned: Params) -> Params:
        return sent.map(lambda t: t + 10.0 * torch.randn(t.shape, generator=rng) * t.std(correction=0).clamp(min=0.1))

    return _changed(down, up, noise)


def replacement(down: Record, up: Record, rng: torch.Generator) -> Record:
    """A random model, scaled up so that the mean of all becomes about that."""
    return _changed(down, up, lambda sent, _: sent + 20.0 * (sent.map(lambda t: _shuffled(t, rng)) - sent))


def swapped_prototypes(down: Record, up: Record, rng: torch.Generator) -> Record:
    """Class means under the labels of other classes: nothing about their size is odd."""
    return _means(up, 1.0)


def poisoned_prototypes(down: Record, up: Record, rng: torch.Generator) -> Record:
    """The same, ten times as long."""
    return _means(up, 10.0)


ATTACKS: dict[str, Attack] = {"sign flip": sign_flip, "gaussian": gaussian, "replacement": replacement}
"""those on shared models"""
PROTOTYPES: dict[str, Attack] = {"swapped": swapped_prototypes, "swapped, x 10": poisoned_prototypes}
"""those on class means"""


def label_flip(plan: Plan, hostile: Collection[int]) -> Plan:
    """The same run, in which these clients train on wrong labels: class c is taken for the c-th last."""
    y = plan.data.y.clone()
    for c in hostile:
        own = slice(plan.data.start(c), plan.data.ends[c][0])
        y[own] = plan.data.task.classes - 1 - y[own]
    return replace(plan, data=replace(plan.data, y=y))


class Hostile:
    """An executor some of whose clients send what the attack makes of their honest answers."""

    def __init__(self, inner: Executor, hostile: Collection[int], attack: Attack, seed: int = 0) -> None:
        self._inner, self._hostile, self._attack, self._seed = inner, frozenset(hostile), attack, seed
        self.workers, self.states, self.clock = inner.workers, inner.states, inner.clock

    def run(self, jobs: Iterable[Job]) -> Iterator[Answer]:
        """Do the jobs, and lie about some."""
        asked = {job.client: job for job in jobs}
        for a in self._inner.run(asked.values()):
            if a.up is None or a.client not in self._hostile:
                yield a
            else:
                rng = torch.Generator().manual_seed(seed_of(self._seed, "attack", a.client, a.t))
                yield replace(a, up=self._attack(asked[a.client].down, a.up, rng))

    def close(self) -> None:
        """Give back what the other one holds."""
        self._inner.close()


def _changed(down: Record, up: Record, attack: Callable[[Params, Params], Params]) -> Shared:
    if not isinstance(down, Shared) or not isinstance(up, Shared):
        raise TypeError(f"{type(up).__name__} is no shared model")
    return Shared(attack(down.w, up.w))


def _means(up: Record, length: float) -> ClassMeans:
    if not isinstance(up, ClassMeans):
        raise TypeError(f"{type(up).__name__} holds no class means")
    return ClassMeans(up.labels, length * (up.means.roll(1, 0) if len(up.labels) > 1 else -up.means))


def _shuffled(t: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    return t.reshape(-1)[torch.randperm(t.numel(), generator=rng)].view(t.shape)
