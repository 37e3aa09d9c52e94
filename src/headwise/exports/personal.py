"""A run's models, made exactly as its evaluations made them."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ..app.launch import data_folder
from ..app.prepare import divided, plan_for
from ..contract.method import record_types
from ..data.federated import FederatedData
from ..data.own.description import MISSING
from ..data.preprocessing.states import from_plain, plain
from ..engine.client.jobs import personal_model, trained_model
from ..engine.client.predictions import passed
from ..engine.host.process import one_thread
from ..engine.plan import Plan
from ..engine.server_bench import ServerBench, broadcasts
from ..errors import RunError
from ..memory import aligned
from ..models.split import channels_last
from ..packed import Packed, to_bytes
from ..runs.checkpoint import Checkpoint, Checkpoints
from ..runs.query import Run
from ..settings.executors import SITES
from ..settings.experiment import experiment_from
from .about import about, described_by
from .card import PROGRAMS, WEIGHTS, write_folder
from .inputs import Inputs
from .loading import runner
from .model import Format, Said, TrainedModel
from .ready import Ready

TRIED = 32
"""samples on which an exported program must agree with the network"""
TOLERATED = 1e-4
"""difference of scores; of probabilities, it is far smaller"""


class Models:
    """All models of one run. Its data are read once: some methods make a client's model from its samples."""

    def __init__(self, run: Run, data_dir: str | Path | None = None) -> None:
        self.run, self._data_dir = run, data_dir
        experiment = run.manifest["experiment"]
        if experiment.get("engine", {}).get("kind") in SITES:
            raise RunError(f"{run.path} has its clients at sites, and so are their models: headwise site export.")

    @cached_property
    def data(self) -> FederatedData:
        manifest = self.run.manifest
        data = divided(experiment_from(manifest["experiment"]), data_folder(self._data_dir or manifest["data_dir"]))
        if (now := data.summary.hash) != (before := manifest["partition"]["hash"]):
            raise RunError(f"{self.run.path} was run on partition {before[:12]}, but the data now gives {now[:12]}.")
        return data

    @cached_property
    def plan(self) -> Plan:
        return plan_for(experiment_from(self.run.manifest["experiment"]), self.data)

    def of(self, who: str | int, moment: str = "pre", round: str = "last", licence: str = "") -> TrainedModel:
        """One client's model, after a download or as after its last training."""
        client = self.run.number_of(who)
        if moment not in ("pre", "post"):
            raise RunError(f"moment is {moment!r}, but must be 'pre' or 'post'.")
        found = self._checkpoint(round)
        t, state = found.progress.t, found.states.get(client)
        central = ServerBench(self.plan, t, "evaluate")
        down = broadcasts(self.plan, found.progress.server, [client], central)[client]
        with one_thread():
            if moment == "pre":
                made = personal_model(self.plan, client, t, state, down)
            elif state is None:
                raise RunError(f"client {who!r} has not trained in {t} rounds: it only has a model before training.")
            else:
                made = trained_model(self.plan, client, t, state, down)
        if made is None:
            raise RunError(f"{self.run.path} keeps no models as after training: evaluate.keep = ['post'] does.")
        if not isinstance(made, nn.Module):
            name = type(self.plan.method).__name__
            raise RunError(f"{name} gives a function, not a module: make it a Composed to use it later.")
        card = about(self.run, self.data.dataset, client=client, moment=moment, t=t, which=round, licence=licence)
        return self._model(made, card, client)

    def world(self, round: str = "last", licence: str = "") -> TrainedModel:
        """The one model for everybody."""
        found = self._checkpoint(round)
        t = found.progress.t
        made = self.plan.method.global_model(found.progress.server, ServerBench(self.plan, t, "evaluate"))
        if made is None:
            raise RunError(f"{self.run.method} has no global model: each client has its own.")
        if self.data.fitted is not None and len(self.data.fitted.mean) > 1:
            raise RunError("preprocess.fit is 'client', so a global model has no inputs of its own.")
        return self._model(made, about(self.run, self.data.dataset, t=t, which=round, licence=licence), 0)

    def adapted(self, x: Any, y: Any, epochs: int = 5) -> TrainedModel:
        """A model for a client that was not there, after so many epochs on its own samples."""
        from .adapting import Newcomer

        if not isinstance(epochs, int) or not 0 <= epochs <= 10_000:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RunError(f"epochs is {epochs!r}, but must be from 0 to 10000.")
        return Newcomer(self, x, y).model(epochs)

    def samples(self, client: int) -> NDArray[Any]:
        """Some of the client's own samples, encoded as a program takes them."""
        part = self.data.parts[client]
        x = self.data.dataset.x[[*part.test, *part.train][:TRIED]]
        inputs = self._inputs(client)
        if inputs.fitted is not None and inputs.fitted.recipe.form == "table":
            x = _renumbered(self.data, inputs, x)
        return x.astype(inputs.dtype)

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

    def _inputs(self, client: int) -> Inputs:
        dataset, fitted = self.data.dataset, self.data.fitted
        shape = tuple(dataset.x.shape[1:])
        if fitted is None:
            dtype = "uint8" if dataset.mean else "int64" if dataset.vocabulary else "float32"
            return Inputs(shape, dtype, dataset.mean, dataset.std)
        dtype = "int64" if fitted.recipe.vocabulary else "uint8" if fitted.recipe.form == "image" else "float64"
        described = described_by(self.plan.experiment)
        missing = MISSING if described is None else described.missing
        return Inputs(shape, dtype, fitted=from_plain(plain(fitted.of(client))), missing=missing)

    def _model(self, network: nn.Module, card: dict[str, Any], client: int) -> TrainedModel:
        inputs = self._inputs(client)
        ready = Ready(inputs, network.eval(), card["task"])
        plan, last = self.plan, any(map(channels_last, self.plan.models))

        @torch.no_grad()
        def answer(x: NDArray[Any]) -> Said:
            """In one pass over all samples, as evaluations do: the last bits may depend on the batch."""
            with one_thread():
                inner = aligned(ready.prepare(torch.from_numpy(x)))
                if last and inner.dim() == 4:
                    inner = inner.contiguous(memory_format=torch.channels_last)
                scores = passed(network, inner, plan.experiment.evaluate.batch, fast=plan.fast).cpu()
                return Said(scores.numpy(), scores.softmax(1).numpy())

        def write(folder: Path, format: Format) -> None:
            save(ready, {**card, "inputs": inputs.plain()}, self.samples(client), folder, format)

        return TrainedModel({**card, "inputs": inputs.plain()}, inputs, answer, network, write)


def _renumbered(data: FederatedData, inputs: Inputs, x: NDArray[Any]) -> NDArray[Any]:
    """Categories as the fitted preprocessing numbers them, not in the order in which the files have them."""
    recipe, x = data.dataset.recipe, x.copy()
    assert recipe is not None and inputs.fitted is not None
    for column, at in recipe.places():
        if column.kind == "category":
            place = {value: float(k) for k, value in enumerate(inputs.fitted.values[column.name])}
            table = np.array([place.get(v, np.nan) for v in recipe.categories[column.name]] + [np.nan])
            x[:, at] = table[np.where(np.isnan(x[:, at]), -1, x[:, at]).astype(np.int64)]
    return x


def save(ready: Ready, card: dict[str, Any], samples: NDArray[Any], folder: Path, format: Format) -> None:
    """Write a model's folder, after its program has answered these samples as the network does."""
    from .programs import exported, onnx_program, torch_program

    if format not in PROGRAMS:
        raise RunError(f"format is {format!r}, but must be one of {', '.join(PROGRAMS)}.")
    program = exported(ready, samples)
    data = onnx_program(program) if format == "onnx" else torch_program(program)
    with torch.no_grad():
        wanted = [t.numpy() for t in ready(torch.from_numpy(samples))]
    said = runner(folder / PROGRAMS[format], data)(samples)
    off = max(float(np.abs(a - b).max(initial=0)) for a, b in zip(said, wanted, strict=True))
    if not off <= TOLERATED:
        raise RunError(f"the {format} program answers this client's samples otherwise than the network, by {off:.2g}.")
    weights = to_bytes(Packed({k: t.detach() for k, t in ready.network.state_dict().items()}, {}))
    write_folder(folder, card, {WEIGHTS: weights, PROGRAMS[format]: data})
