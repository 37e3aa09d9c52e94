"""The global model of a run whose clients are at sites: made from what its server was told, without any sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ..app.prepare import plan_for
from ..data.dataset import Dataset
from ..data.federated import clients_at_sites, task_at_sites
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


FACTS = ("shape", "classes", "vocabulary", "sizes", "kind")
"""that sites tell of each client's data"""


class Served:
    """A deployment's plan and inputs; its classes have the study's names or, because sites tell none, numbers."""

    def __init__(self, run: Run) -> None:
        self.run, experiment = run, experiment_from(run.manifest["experiment"])
        told = self._told(run.path / "sites.json")
        options = experiment.data.options if experiment.data.name == OWN else {}
        statistics = options.get("statistics", "")
        self._fitted = fit(*read(statistics)) if statistics else None
        self._apart = bool(options) and (self._fitted is None or self._fitted.recipe.options.fit == "client")
        first, count = next(iter(told.values())), run.manifest["experiment"]["clients"]
        as_told = Task(tuple(first["shape"]), first["classes"], first["vocabulary"], first["kind"])
        task = task_at_sites(as_told, statistics, experiment.target_range)
        sizes = [told[c]["sizes"] if c in told else (0, 0, 0) for c in range(count)]
        self.plan: Plan = plan_for(experiment, clients_at_sites(task, sizes, {}))
        self.named = tuple(options.get("classes", ()))
        classes = self.named or tuple(map(str, range(task.classes)))
        x, y = np.empty((0, *task.shape)), np.empty(0, np.int64)
        self.dataset = Dataset(x, y, classes, vocabulary=task.vocabulary, task=task.kind)

    def inputs(self) -> OwnInputs:
        """Raw samples of a user's own data; of public data, samples as the networks take them."""
        task, fitted = self.plan.data.task, self._fitted
        if self._apart:
            raise RunError("each site has its own preprocessing, so a global model has no inputs of its own.")
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
        features, options = Features(**kinds), self._fitted.recipe.options
        return dump(Description("csv", "", features=features, preprocess=options, classes=self.named))

    @staticmethod
    def _told(path: Path) -> dict[int, dict[str, Any]]:
        """What sites told of each client's data; all must tell the same shape and classes."""
        found = read_json(path, absent=b"{}")
        try:
            each = {
                t["client"]: {"kind": "classification", **{k: t[k] for k in FACTS if k in t}} for t in found["told"]
            }
            if not each or any(fact.keys() != set(FACTS) for fact in each.values()):
                raise ValueError("facts are missing")
            return each
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"{path} is damaged: it does not say what data the sites have.") from error


def refuse(run: Run, client: int | None = None) -> NoReturn:
    """Say where the personal models of a deployed run are, and how to get one."""
    name = f"run-{digest(read_bytes(run.path / 'manifest.json'))[:16]}"  # as `sites.server.deployment` names it
    who = "CLIENT" if client is None else client
    command = f"headwise site export SITE --run {name} --client {who} --format onnx -o DIR"
    raise RunError(f"{run.path} has its personal models at the sites that trained them: there, use {command}.")
