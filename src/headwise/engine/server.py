"""The server's workbench: a method's `Central`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn

from ..benches import M
from ..layout import settled
from ..models.replicas import replica
from ..models.split import SplitModel
from ..params import Params
from ..records import Record, map_tensors
from ..robust import combine
from ..seeds import seed_of
from .devices import on
from .plan import Plan

_DRAWING = threading.Lock()


class ServerBench:
    """What the server's half may ask for."""

    def __init__(self, plan: Plan, t: int, *purpose: int | str) -> None:
        self._plan, self.t, self.T, self.N = plan, t, plan.rounds, len(plan.data)
        self.classes = plan.data.task.classes
        self.rng = torch.Generator().manual_seed(seed_of(plan.seed, *(purpose or ("server",)), t))
        self._template = plan.common
        self.kept = Params()

    def init(self, *, common: bool = False) -> SplitModel:
        """A copy of the initial model; `common` is the server's architecture."""
        return on(replica(self._plan.common if common else self._template, {}), self._plan.device)

    def model(self, params: Params, *, common: bool = False) -> SplitModel:
        """A model with these parameters; what they leave open is what the client kept, else the initial."""
        template = self._plan.common if common else self._template
        known = self._plan.shapes(template)
        if unknown := [k for k in params if k not in known]:
            raise KeyError(f"the model has no {sorted(unknown)}")
        kept = {k: t for k, t in self.kept.items() if t.shape == known.get(k)}
        return on(replica(template, {**kept, **params}), self._plan.device)

    def draw(self, make: Callable[[], M], *key: int | str) -> M:
        """A module made with the randomness of this key: the same everywhere and in every round."""
        with _DRAWING, torch.random.fork_rng(devices=[]):  # clients in threads share torch's generator
            torch.manual_seed(seed_of(self._plan.seed, "draw", *key))
            return on(make().eval(), self._plan.device)

    def random_head(self, *key: int | str) -> Params:
        """A freshly drawn head for this model; the same key gives the same head."""
        m = self.init()

        def redrawn() -> SplitModel:
            for layer in m.head.modules():
                if isinstance(layer, nn.Linear):
                    layer.reset_parameters()
            return m

        return self.draw(redrawn, "head", *key).state("head")

    def mean(self, items: Sequence[Params], weights: Sequence[float], around: Params) -> Params:
        """The weighted mean of what clients made of `around`, or what the run takes in its place."""
        robust = self._plan.robust
        return combine(robust.rule, items, weights, around, robust.hostile, robust.clip)

    def labels(self, client: int) -> tuple[int, ...]:
        """The classes of this client's training samples; under privacy all, for these are nobody's business."""
        if self._plan.privacy.clip is not None:
            return tuple(range(self.classes))
        return self._plan.data.labels(client)


def broadcasts(plan: Plan, server: Record, clients: Iterable[int], central: ServerBench) -> dict[int, Record]:
    """What each client is sent; records that hold the very same things are one, which is stored and sent once."""
    made: dict[tuple[int, ...], tuple[Record, Record]] = {}
    found: dict[int, Record] = {}
    for c in clients:
        down = plan.method.broadcast(server, c, central)
        what = tuple(map(id, vars(down).values()))
        if what not in made:
            made[what] = down, map_tensors(down, settled)  # the first is held, or its parts' ids would be used again
        found[c] = made[what][1]
    return found
