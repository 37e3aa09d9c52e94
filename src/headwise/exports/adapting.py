"""A model for a client that was not there: from what the run's server has, and the client's own samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ..data.preprocessing import fit, measure
from ..engine.host.process import one_thread
from ..engine.joining import join
from ..engine.plan import Plan
from ..errors import DataError, RunError
from ..log.metrics import Score
from .about import card_of
from .inputs import Inputs
from .making import TRIED, OwnInputs, inputs_of, make
from .model import TrainedModel
from .personal import Models
from .quality import scored
from .ready import preparing
from .samples import read
from .targets import expected


class Newcomer:
    """A client that a run does not know yet."""

    def __init__(self, models: Models, raw: Any, labels: Any) -> None:
        self.models, self.data, self.plan = models, models.data, models.plan
        card = card_of(self.plan.experiment, self.plan.experiment.data, self.data.dataset, {}, "")
        inputs = inputs_of(self.data, self.plan.clients[0], card["reading"])
        self._x = inputs.encode(raw)
        if len(self._x) != len(labels) or not len(labels):
            raise DataError(f"there are {len(self._x)} samples and {len(labels)} labels, but each needs one.")
        card["inputs"] = inputs.plain()
        self._y = torch.from_numpy(expected(card, labels, lambda i: f"label {i}", in_files=False))
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


class AdaptedClient(NamedTuple):
    """One of the clients in some files."""

    client: str
    """its name; empty if the files don't say it"""
    trained_on: int
    measured_on: int
    scores: dict[int, Score]
    """on the samples that it did not train on, after each number of epochs; empty if there are none"""
    model: TrainedModel


def adapt_files(models: Models, data: Path, client: str, epochs: int, test: float) -> Iterator[AdaptedClient]:
    """A model for each client in these files, or for one of them; a share of its samples is only measured with."""
    reader = models.of(models.plan.clients[0])
    batches = list(read(data, reader, labelled=True, client=client))
    x = np.concatenate([reader.inputs.encode(batch.raw) for batch in batches])
    y = np.concatenate([batch.y for batch in batches if batch.y is not None])
    owners = np.array([name for batch in batches for name in batch.clients], dtype=object)
    for owner in dict.fromkeys(owners):
        mine = np.flatnonzero(owners == owner)
        order = mine[np.random.default_rng(models.plan.experiment.seed).permutation(len(mine))]
        held, rest = np.split(order, [round(test * len(mine))])
        newcomer = Newcomer(models, x[np.sort(rest)], _named(reader, y[np.sort(rest)]))
        made = {e: newcomer.model(e) for e in sorted({0, epochs})}
        scores = {e: scored(model, model.answer(x[held]).scores, y[held]) for e, model in made.items() if len(held)}
        yield AdaptedClient(owner, len(rest), len(held), scores, made[epochs])


def _named(model: TrainedModel, y: NDArray[Any]) -> NDArray[Any]:
    """Targets as `Newcomer` takes them: classes by their names."""
    return np.array(model.classes, dtype=object)[y] if model.card["task"] == "classification" else y
