"""The global model of a run whose clients are at sites: made from what its server was told, without any sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from ..app.prepare import plan_for
from ..data.dataset import Dataset
from ..data.federated import Clients, task_at_sites
from ..data.own.description import Description, Features
from ..data.preprocessing.fitting import fit
from ..data.preprocessing.sharing import read
from ..data.preprocessing.states import from_plain, plain
from ..disk.files import digest, read_bytes, read_json
from ..engine.plan import Plan
from ..errors import RunError
from ..models.base import Task
from ..runs.query import Run
from ..settings.experiment import OWN, experiment_from
from ..settings.fields import dump
from .inputs import Inputs
from .making import OwnInputs

DEPLOYED = "flower"
"""the engine of runs with sites; in a simulation of sites, all clients are here"""


class Served:
    """A deployment's plan and inputs; its classes have numbers, because sites tell no names."""

    def __init__(self, run: Run) -> None:
        self.run, experiment = run, experiment_from(run.manifest["experiment"])
        told = self._told(run.path / "sites.json")
        statistics = experiment.data.options.get("statistics", "") if experiment.data.name == OWN else ""
        self._fitted = fit(*read(statistics)) if statistics else None
        if experiment.data.name == OWN and (self._fitted is None or self._fitted.recipe.options.fit == "client"):
            raise RunError("each site has its own preprocessing, so a global model has no inputs of its own.")
        task = Task(tuple(told["shape"]), told["classes"], told["vocabulary"], experiment.task or "classification")
        task = task_at_sites(task, statistics, experiment.target_range)
        count = run.manifest["experiment"]["clients"]
        nothing = torch.empty((0, *task.shape))
        data = Clients(task, nothing, torch.empty(0, dtype=torch.int64), np.zeros((count, 3), np.int64), {})
        self.plan: Plan = plan_for(experiment, data)
        classes = tuple(map(str, range(task.classes)))
        x, y = np.empty((0, *task.shape)), np.empty(0, np.int64)
        self.dataset = Dataset(x, y, classes, vocabulary=task.vocabulary, task=task.kind)

    def inputs(self) -> OwnInputs:
        """Raw samples of a user's own data; of public data, samples as the networks take them."""
        task, fitted = self.plan.data.task, self._fitted
        if fitted is None:
            inputs = Inputs(task.shape, "int64" if task.vocabulary else "float32")
        else:
            form = fitted.recipe.form
            dtype = "int64" if fitted.recipe.vocabulary else "uint8" if form == "image" else "float64"
            inputs = Inputs(fitted.recipe.shape, dtype, fitted=from_plain(plain(fitted)))
        return OwnInputs(inputs, np.stack([np.zeros(inputs.shape, inputs.dtype), np.ones(inputs.shape, inputs.dtype)]))

    def reading(self) -> dict[str, Any]:
        """How to read tables with the columns of the sites' data."""
        if self._fitted is None:
            return {}
        columns = self._fitted.recipe.columns
        kinds = {kind: tuple(c.name for c in columns if c.kind == kind) for kind in ("number", "category", "text")}
        return dump(Description("csv", "", features=Features(**kinds), preprocess=self._fitted.recipe.options))

    @staticmethod
    def _told(path: Path) -> dict[str, Any]:
        """What the first site told of its data; all must tell the same."""
        found = read_json(path, absent=b"{}")
        try:
            told = dict(found["told"][0])
            return {name: told[name] for name in ("shape", "classes", "vocabulary")}
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise RunError(f"{path} is damaged: it does not say what data the sites have.") from error


def refuse(run: Run, client: int | None = None) -> NoReturn:
    """Say where the personal models of a deployed run are, and how to get one."""
    name = f"run-{digest(read_bytes(run.path / 'manifest.json'))[:16]}"  # as `sites.server.deployment` names it
    who = "CLIENT" if client is None else client
    command = f"headwise site export SITE --run {name} --client {who} --format onnx -o DIR"
    raise RunError(f"{run.path} has its personal models at the sites that trained them: there, use {command}.")
