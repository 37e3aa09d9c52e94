"""A run's models, made exactly as its evaluations made them."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from ..app.launch import data_folder
from ..app.objects import with_remembered
from ..app.prepare import divided, plan_for
from ..contract.method import record_types
from ..data.federated import FederatedData
from ..engine.client.jobs import personal_model, trained_model
from ..engine.host.process import one_thread
from ..engine.plan import Plan
from ..engine.server_bench import ServerBench, broadcasts
from ..errors import RunError, counted
from ..runs.checkpoint import Checkpoint, Checkpoints
from ..runs.names import called
from ..runs.query import Run
from ..settings.experiment import Experiment, experiment_from
from .about import about
from .making import make
from .model import TrainedModel
from .served import DEPLOYED, Served, refuse


class Models:
    """All models of one run. Its data are read once: some methods make a client's model from its samples."""

    def __init__(self, run: Run, data_dir: str | Path | None = None) -> None:
        self.run, self._data_dir = run, data_dir
        self.deployed = run.manifest["experiment"].get("engine", {}).get("kind") == DEPLOYED
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
                made = personal_model(self.plan, client, t, state, down)
            elif state is None:
                raise RunError(
                    f"client {called(client, self.run.names)} has not trained in {counted(t, 'round')}: "
                    "it only has a model before training."
                )
            else:
                made = trained_model(self.plan, client, t, state, down)
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
