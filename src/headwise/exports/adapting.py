"""A model for a client that was not there: from what the run's server has, and the client's own samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..data.preprocessing.fitting import fit, measure
from ..engine.host.process import one_thread
from ..engine.joining import join
from ..engine.plan import Plan
from ..errors import DataError, RunError
from ..settings.experiment import OWN
from .about import card_of
from .inputs import Inputs
from .making import TRIED, OwnInputs, inputs_of, make
from .model import TrainedModel
from .personal import Models
from .ready import preparing


class Newcomer:
    """A client that a run does not know yet."""

    def __init__(self, models: Models, raw: Any, labels: Any) -> None:
        self.models, self.data, self.plan = models, models.data, models.plan
        if self.data.dataset.task != "classification":
            raise RunError(f"task is {self.data.dataset.task!r}, but only models of classification can be adapted yet.")
        self._card = card_of(self.plan.experiment, self.plan.experiment.data, self.data.dataset, {}, "")
        inputs = inputs_of(self.data, self.plan.clients[0], self._card["reading"])
        self._x, self._y = inputs.encode(raw), self._numbers(labels)
        if len(self._x) != len(self._y) or not len(self._y):
            raise DataError(f"there are {len(self._x)} samples and {len(self._y)} labels, but each needs one.")
        self._inputs = _scaled(inputs, self._x) if self._per_client else inputs

    def model(self, epochs: int) -> TrainedModel:
        found = self.models.checkpoint("last")
        t, plan = found.progress.t, self._with_me()
        with one_thread(), torch.random.fork_rng(devices=[]):
            made = join(plan, found.progress.server, len(self.plan.data), t, epochs)
        if not isinstance(made.model, nn.Module):
            name = type(plan.method).__name__
            raise RunError(f"{name} gives a function, not a module: make it a Composed to use it later.")
        of = {"kind": "adapted", "moment": "join", "round": t, "which": "last", "epochs": epochs, "passes": made.passes}
        card = card_of(plan.experiment, plan.experiment.data, self.data.dataset, of, "")
        partition = self.models.run.manifest["partition"]["hash"]
        card["training"] |= {"rounds": t, "samples": len(self._y), "partition": partition}
        return make(plan, self.data, made.model, card, OwnInputs(self._inputs, self._x[:TRIED]))

    @property
    def _per_client(self) -> bool:
        return self.data.fitted is not None and len(self.data.fitted.mean) > 1

    def _numbers(self, labels: Any) -> Tensor:
        """The number of each class; public data sets may number them, and a user's own files write them."""
        classes = self.data.dataset.classes
        place = {} if self.plan.experiment.data.name == OWN else {str(k): k for k in range(len(classes))}
        place |= {name: k for k, name in enumerate(classes)}
        found = [place.get(str(label), -1) for label in np.asarray(labels).tolist()]
        if -1 in found:
            label = np.asarray(labels).tolist()[found.index(-1)]
            raise DataError(f"label {label!r} is not one of the classes: {', '.join(classes[:20])}.")
        return torch.tensor(found, dtype=torch.int64)

    def _with_me(self) -> Plan:
        """The plan with this client as its last one, which does not take part."""
        data, n = self.plan.data, len(self._y)
        x = preparing(self._inputs)(torch.from_numpy(self._x))
        absent = data.absent | {*self.plan.newcomers, len(data)}
        more = replace(
            data,
            x=torch.cat([data.x, x.to(data.x.dtype)]),
            y=torch.cat([data.y, self._y]),
            ends=np.vstack([data.ends, np.full(3, data.ends[-1, 2] + n)]),
            names=(),
            absent=absent,
        )
        plan = replace(self.plan, data=more)
        return plan.changed(evaluate=replace(plan.experiment.evaluate, new_clients=0.0))


def _scaled(inputs: Inputs, x: NDArray[Any]) -> Inputs:
    """With this client's own means and deviations, where each client has its own."""
    fitted = inputs.fitted
    assert fitted is not None
    own = fit(fitted.recipe, measure(fitted.recipe, x))
    return replace(inputs, fitted=replace(fitted, mean=own.mean, std=own.std, fill=own.fill))
