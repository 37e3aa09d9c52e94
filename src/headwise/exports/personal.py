"""A run's models, made exactly as its evaluations made them."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from torch import nn

from ..app.launch import data_folder
from ..app.objects import with_remembered
from ..app.prepare import divided, plan_for
from ..contract.method import record_types
from ..data.dataset import Dataset
from ..data.federated import FederatedData, clients_at_sites, task_at_sites
from ..data.own.description import Description, Features
from ..data.preprocessing import fit, from_state, sums_from_json, to_state
from ..disk.files import digest, read_bytes, read_json
from ..engine.client.jobs import make_personal_model, restore_trained_model
from ..engine.host.process import one_thread
from ..engine.plan import Plan
from ..engine.server_bench import ServerBench, broadcasts
from ..errors import RunError, counted
from ..models.base import Task
from ..runs.checkpoint import Checkpoint, Checkpoints
from ..runs.query import Run, client_label
from ..settings.experiment import OWN, Experiment, experiment_from
from ..settings.fields import dump
from .about import about
from .inputs import Inputs
from .making import OwnInputs, make
from .model import TrainedModel

DEPLOYED = "flower"
"""the engine of runs with sites; in a simulation of sites, all clients are here"""
FACTS = ("shape", "classes", "vocabulary", "sizes", "kind")
"""that sites tell of each client's data"""


class Models:
    """All models of one run. Its data are read once: some methods make a client's model from its samples."""

    def __init__(self, run: Run, data_dir: str | Path | None = None) -> None:
        self.run, self._data_dir = run, data_dir
        self.deployed = run.manifest["experiment"]["engine"]["kind"] == DEPLOYED
        self._checkpoints: dict[tuple[str, ...], Checkpoint] = {}

    @cached_property
    def experiment(self) -> Experiment:
        return with_remembered(experiment_from(self.run.manifest["experiment"]), self.run.path)

    @cached_property
    def data(self) -> FederatedData:
        manifest = self.run.manifest
        if self.deployed:
            refuse(self.run)
        data = divided(self.experiment, data_folder(self._data_dir or manifest["data_dir"]))
        if (now := data.summary.hash) != (before := manifest["partition"]["hash"]):
            raise RunError(f"{self.run.path} was run on partition {before[:12]}, but the data now gives {now[:12]}.")
        return data

    @cached_property
    def _served(self) -> Served:
        return Served(self.run)

    @cached_property
    def plan(self) -> Plan:
        if self.deployed:
            return self._served.plan
        return plan_for(self.experiment, self.data)

    def of(self, client: int, moment: str = "pre", round: str = "last", licence: str = "") -> TrainedModel:
        """The model of the client with this number, after a download or as after its last training."""
        if self.deployed:
            refuse(self.run, client)
        if moment not in ("pre", "post"):
            raise RunError(f"moment is {moment!r}, but must be 'pre' or 'post'.")
        found = self.checkpoint(round)
        t, state = found.progress.t, found.states.get(client)
        central = ServerBench(self.plan, t, "evaluate")
        down = broadcasts(self.plan, found.progress.server, [client], central)[client]
        with one_thread():
            if moment == "pre":
                made = make_personal_model(self.plan, client, t, state, down)
            elif state is None:
                raise RunError(
                    f"client {client_label(client, self.run.names)} has not trained in {counted(t, 'round')}: "
                    "it only has a model before training."
                )
            else:
                made = restore_trained_model(self.plan, client, t, state, down)
        if made is None:
            raise RunError(f"{self.run.path} keeps no models as after training: evaluate.keep = ['post'] does.")
        if not isinstance(made, nn.Module):
            name = type(self.plan.method).__name__
            raise RunError(f"{name} gives a function, not a module: make it a Composed to use it later.")
        card = about(self.run, self.data.dataset, client=client, moment=moment, t=t, which=round, licence=licence)
        return make(self.plan, self.data, made, card, client)

    def world(self, round: str = "last", licence: str = "") -> TrainedModel:
        """The one model for everybody."""
        found = self.checkpoint(round)
        t = found.progress.t
        made = self.plan.method.global_model(found.progress.server, ServerBench(self.plan, t, "evaluate"))
        if made is None:
            raise RunError(f"{self.run.method} has no global model: each client has its own.")
        if self.deployed:
            served = self._served
            card = about(self.run, served.dataset, t=t, which=round, licence=licence)
            card |= {"reading": served.reading(), "of": {**card["of"], "numbered": not served.named}}
            return make(self.plan, None, made, card, served.inputs())
        if self.data.fitted is not None and len(self.data.fitted.mean) > 1:
            raise RunError("preprocess.fit is 'client', so a global model has no inputs of its own.")
        card = about(self.run, self.data.dataset, t=t, which=round, licence=licence)
        return make(self.plan, self.data, made, card, 0)

    def adapted(self, x: Any, y: Any, epochs: int = 5) -> TrainedModel:
        """A model for a client that was not there, after so many epochs on its own samples."""
        from .adapting import Newcomer

        if not isinstance(epochs, int) or not 0 <= epochs <= 10_000:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RunError(f"epochs is {epochs!r}, but must be from 0 to 10000.")
        return Newcomer(self, x, y).model(epochs)

    def checkpoint(self, round: str) -> Checkpoint:
        """Read once while its files stay the same, because reading it checks the state of every client."""
        key = round, *sorted(p.name for p in (self.run.path / "checkpoint").glob("*.safetensors"))
        if key not in self._checkpoints:
            self._checkpoints = {key: self._checkpoint(round)}
        return self._checkpoints[key]

    def _checkpoint(self, round: str) -> Checkpoint:
        types = record_types(type(self.plan.method))
        kept = Checkpoints(self.run.path / "checkpoint", types)
        if round not in ("last", "best"):
            raise RunError(f"round is {round!r}, but must be 'last' or 'best'.")
        found = kept.load() if round == "last" else kept.best()
        if found is None:
            why = "has no checkpoint" if round == "last" else "keeps no best round: evaluate.keep = ['best'] does"
            raise RunError(f"{self.run.path} {why}.")
        return found


class Served:
    """A deployment's plan and inputs; its classes have the study's names or, because sites tell none, numbers."""

    def __init__(self, run: Run) -> None:
        self.run, experiment = run, experiment_from(run.manifest["experiment"])
        told = self._told(run.path / "sites.json")
        options = experiment.data.options if experiment.data.name == OWN else {}
        statistics = options.get("statistics", "")
        self._fitted = fit(*sums_from_json(statistics)) if statistics else None
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
            inputs = Inputs(fitted.recipe.shape, dtype, fitted=from_state(to_state(fitted)))
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
