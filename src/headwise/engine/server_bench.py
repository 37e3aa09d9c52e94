"""The server's workbench: a method's `Central`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from ..contract.calls import broadcast
from ..contract.robust import combine
from ..memory import settle
from ..params import Params
from ..records import Record, map_tensors
from ..seeds import seed_of
from .plan import Plan
from .sampling import participants
from .workbench import Workbench


class ServerBench(Workbench):
    def __init__(self, plan: Plan, t: int, purpose: str = "server") -> None:
        super().__init__(plan, t, plan.common, Params())
        self._round = t
        self._in_round = purpose == "server" and t > 0
        self.rng = torch.Generator().manual_seed(seed_of(plan.experiment.seed, purpose, self.t))

    @property
    def drawn(self) -> Sequence[int]:
        return participants(self._plan, self._round) if self._in_round else []

    def mean(self, items: Sequence[Params], weights: Sequence[float], around: Params) -> Params:
        robust = self._plan.experiment.robust
        return combine(robust.rule, items, weights, around, robust.hostile, robust.clip)

    def size(self, client: int) -> int:
        """The training samples that this client reported; the same for everybody where sizes are hidden."""
        return 1 if self._plan.privacy.hides_sizes else max(self._size(client), 1)

    def labels(self, client: int) -> tuple[int, ...]:
        """The classes of this client's training samples; under privacy all classes, as the real ones are secret."""
        if self._plan.privacy.protects:
            return tuple(range(self.classes))
        if client in self._plan.drifting:
            return tuple(self._plan.client(client, self._round).train.y.unique().tolist())
        return self._plan.data.labels(client)

    def _size(self, client: int) -> int:
        plan = self._plan
        return len(plan.client(client, self._round).train) if client in plan.drifting else plan.data.sizes(client)[0]


def broadcasts(plan: Plan, server: Record, clients: Iterable[int], central: ServerBench) -> dict[int, Record]:
    """The message for each client. Records that hold the same objects become one, which is stored and sent once."""
    made: dict[tuple[int, ...], tuple[Record, Record]] = {}
    downs: dict[int, Record] = {}
    for c in clients:
        down = broadcast(plan.method, server, c, central)
        what = tuple(map(id, vars(down).values()))
        if what not in made:
            made[what] = down, map_tensors(down, settle)  # keep `down` alive, or its ids could be reused
        downs[c] = made[what][1]
    return downs
