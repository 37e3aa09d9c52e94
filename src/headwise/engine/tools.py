"""What the server's and the clients' benches share: models, modules and heads."""

from __future__ import annotations

import threading
from collections.abc import Callable

from torch import nn

from ..contract.benches import M
from ..models.replicas import replica
from ..models.split import SplitModel
from ..params import Params
from ..seeds import seed_of
from .host.devices import move_to
from .host.drawing import drawing
from .plan import Plan

_DRAWING = threading.Lock()


class Tools:
    """Implements `Bench`, which documents each tool, for one architecture; `kept` is what the client kept of it."""

    def __init__(self, plan: Plan, template: SplitModel, kept: Params) -> None:
        self._plan, self._template, self._kept = plan, template, kept

    def init(self, *, common: bool = False) -> SplitModel:
        return move_to(replica(self._plan.common if common else self._template, {}), self._plan.device)

    def model(self, params: Params, *, common: bool = False) -> SplitModel:
        template = self._plan.common if common else self._template
        known = self._plan.shapes(template)
        if unknown := [k for k in params if k not in known]:
            raise KeyError(f"the model has no {sorted(unknown)}")
        kept = {k: t for k, t in self._kept.items() if t.shape == known.get(k)}
        return move_to(replica(template, {**kept, **params}), self._plan.device)

    def draw(self, make: Callable[[], M], *key: int | str) -> M:
        with (
            _DRAWING,
            drawing(seed_of(self._plan.experiment.seed, "draw", *key)),
        ):  # clients in threads share torch's generator
            return move_to(make().eval(), self._plan.device)

    def random_head(self, *key: int | str) -> Params:
        m = self.init()

        def redrawn() -> SplitModel:
            for layer in m.head.modules():
                if isinstance(layer, (nn.Linear, nn.Conv2d)):
                    layer.reset_parameters()
            return m

        return self.draw(redrawn, "head", *key).state("head")
