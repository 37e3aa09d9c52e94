"""What the server's and the clients' benches share: the round, models, modules and heads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from torch import Tensor, nn

from ..contract.benches import M
from ..models.replicas import replica
from ..models.split import SplitModel
from ..params import Params
from ..seeds import seed_of
from .drawing import draw_alike
from .host import move_to
from .kernels.native.autograd import accelerate
from .plan import Plan

_DRAWING = threading.Lock()


class Workbench:
    """Implements `Bench`, which documents each tool, for one architecture; `kept` is what the client kept of it."""

    def __init__(self, plan: Plan, t: int, template: SplitModel, kept: Params, *, fast: bool = False) -> None:
        """With `fast`, the convolutions of networks run natively, under any loss."""
        self.t = plan.at(t)
        self.T = plan.at(plan.experiment.rounds)
        self.N = len(plan.data)
        self.classes = plan.data.task.classes
        self.clients = plan.clients
        self._plan = plan
        self._template = template
        self._kept = kept
        self._fast = fast

    def init(self, *, common: bool = False) -> SplitModel:
        return self._make(common, {})

    def model(self, params: Params, *, common: bool = False) -> SplitModel:
        known = self._plan.shapes(self._plan.common if common else self._template)
        if unknown := [k for k in params if k not in known]:
            raise KeyError(f"the model has no {sorted(unknown)}")
        kept = {k: t for k, t in self._kept.items() if t.shape == known.get(k)}
        return self._make(common, {**kept, **params})

    def _make(self, common: bool, values: Mapping[str, Tensor]) -> SplitModel:
        model = move_to(replica(self._plan.common if common else self._template, values), self._plan.device)
        if self._fast:
            accelerate(model.body)
        return model

    def draw(self, make: Callable[[], M], *key: int | str) -> M:
        seed = seed_of(self._plan.experiment.seed, "draw", *key)
        with _DRAWING, draw_alike(seed):  # clients in threads share torch's generator
            return move_to(make().eval(), self._plan.device)

    def random_head(self, *key: int | str) -> Params:
        m = self.init()

        def redraw() -> SplitModel:
            for layer in m.head.modules():
                if isinstance(layer, (nn.Linear, nn.Conv2d)):
                    layer.reset_parameters()
            return m

        return self.draw(redraw, "head", *key).state("head")
