"""Models for new clients, from the server's state and the client's own samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..data.preprocessing import fit, measure
from ..engine.host import use_one_thread
from ..engine.joining import join
from ..engine.plan import Plan
from ..errors import DataError
from ..log.metrics import Score
from ..tasks.registry import kind_of
from .card import make_card
from .inputs import EncodedTable, Inputs
from .model import TrainedModel
from .network import build_preprocessing
from .quality import score_targets
from .run_models import SAMPLES, ClientInputs, Models, inputs_of, make_model, require_module
from .samples import encode_targets, read_batches


class NewClient:
    """A client that a run does not know yet."""

    def __init__(self, models: Models, raw: Any, labels: Any) -> None:
        self.models = models
        self.data = models.data
        self.plan = models.plan
        card = make_card(self.plan.experiment, self.plan.experiment.data, self.data.dataset, {}, "")
        inputs = inputs_of(self.data, self.plan.clients[0], card["reading"])
        self._x = inputs.encode(raw)
        if len(self._x) != len(labels) or not len(labels):
            raise DataError(f"x has {len(self._x)} samples and y {len(labels)} labels, but each sample needs one.")
        card["inputs"] = inputs.to_plain()
        self._y = torch.from_numpy(encode_targets(card, labels, lambda i: f"label {i}", in_files=False))
        per_client = self.data.fitted is not None and len(self.data.fitted.mean) > 1
        self._inputs = _fit_scaling(inputs, self._x) if per_client else inputs

    def model(self, epochs: int) -> TrainedModel:
        checkpoint = self.models.checkpoint("last")
        t = checkpoint.progress.t
        plan = self._plan_with_client()
        with use_one_thread(), torch.random.fork_rng(devices=[]):
            joined = join(plan, checkpoint.progress.server, len(self.plan.data), t, epochs)
        network = require_module(plan, joined.model)
        of = {"kind": "adapted", "moment": "join", "round": t, "which": "last"}
        of |= {"epochs": epochs, "passes": joined.passes}
        card = make_card(plan.experiment, plan.experiment.data, self.data.dataset, of, "")
        partition = self.models.run.manifest["partition"]["hash"]
        card["training"] |= {"rounds": t, "samples": len(self._y), "partition": partition}
        return make_model(plan, network, card, ClientInputs(self._inputs, self._x[:SAMPLES]))

    def _plan_with_client(self) -> Plan:
        """The plan with this client as its last one, which does not take part."""
        data = self.plan.data
        x = build_preprocessing(self._inputs)(torch.from_numpy(self._x))
        absent = data.absent | {*self.plan.newcomers, len(data)}
        more = replace(
            data,
            x=torch.cat([data.x, x.to(data.x.dtype)]),
            y=torch.cat([data.y, self._y]),
            ends=np.vstack([data.ends, np.full(3, data.ends[-1, 2] + len(self._y))]),
            names=(),
            absent=absent,
            weight=None if data.weight is None else torch.cat([data.weight, torch.ones(len(self._y))]),
        )
        plan = replace(self.plan, data=more)
        return plan.with_settings(evaluate=replace(plan.experiment.evaluate, new_clients=0.0))


def _fit_scaling(inputs: Inputs, x: NDArray[Any]) -> Inputs:
    """With this client's own means and deviations, where each client has its own."""
    fitted = inputs.fitted
    assert fitted is not None
    own = fit(fitted.recipe, measure(fitted.recipe, x))
    return replace(inputs, fitted=replace(fitted, mean=own.mean, std=own.std, fill=own.fill))


class AdaptedClient(NamedTuple):
    client: str
    """its name; empty if the files name none"""
    trained_on: int
    measured_on: int
    scores: dict[int, Score]
    """scores on held-out samples, after each number of epochs; empty if there are none"""
    model: TrainedModel


def adapt_files(models: Models, data: Path, client: str, epochs: int, test: float) -> Iterator[AdaptedClient]:
    """A model for each client in these files, or for one of them; a share of its samples is held out for testing."""
    reader = models.of(models.plan.clients[0])
    batches = list(read_batches(data, reader, labelled=True, client=client))
    x = np.concatenate([reader.inputs.encode(batch.raw) for batch in batches])
    as_encoded = EncodedTable if reader.inputs.form == "table" else np.asarray
    y = np.concatenate([batch.y for batch in batches if batch.y is not None])
    owners = np.array([name for batch in batches for name in batch.clients], dtype=object)
    for owner in dict.fromkeys(owners):
        mine = np.flatnonzero(owners == owner)
        order = mine[np.random.default_rng(models.plan.experiment.seed).permutation(len(mine))]
        held, rest = np.split(order, [round(test * len(mine))])
        new_client = NewClient(models, as_encoded(x[np.sort(rest)]), _label_names(reader, y[np.sort(rest)]))
        adapted = {e: new_client.model(e) for e in sorted({0, epochs})}
        scores = {
            e: score_targets(model, model.answer(x[held]).scores, y[held]) for e, model in adapted.items() if len(held)
        }
        yield AdaptedClient(owner, len(rest), len(held), scores, adapted[epochs])


def _label_names(model: TrainedModel, y: NDArray[Any]) -> NDArray[Any]:
    """Targets as `NewClient` takes them: classes by their names."""
    return np.array(model.classes, dtype=object)[y] if kind_of(model.card["task"]).one_class else y
