"""From a network that a method made to a model ready to use, and its folder."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ..data.federated import FederatedData
from ..data.own.description import MISSING
from ..data.preprocessing import from_state, to_state
from ..engine.client.scoring import compute_outputs
from ..engine.host.devices import move_to
from ..engine.host.process import one_thread
from ..engine.plan import Plan
from ..errors import ConfigError, RunError
from ..memory import aligned
from ..models.split import channels_last
from ..settings.experiment import Choice
from ..tasks.registry import objective_of
from .card import FILES, MOST, check_format, write_folder
from .inputs import Inputs
from .loading import network_answer, program_answer, rebuilt_network
from .model import Format, Said, TrainedModel
from .programs import exported, onnx_program
from .ready import Ready, described, is_ours, layout, meaning, preparing, stored

TRIED = 32
"""samples on which an exported program must agree with the network"""
TOLERATED = 1e-4
"""difference of scores; of probabilities, it is far smaller"""


class OwnInputs(NamedTuple):
    """Whose preprocessing a model has, and some of its client's samples, on which programs are tried."""

    inputs: Inputs
    samples: NDArray[Any]


def make(
    plan: Plan, data: FederatedData | None, network: nn.Module, card: dict[str, Any], own: int | OwnInputs
) -> TrainedModel:
    """The network as a model that takes raw samples of a client, one of the data's or one with its own inputs."""
    if isinstance(own, int):
        assert data is not None
        own = _of_client(data, own, card["reading"])
    inputs, samples = own
    card = {**card, "inputs": inputs.plain()}
    prepare, last = preparing(inputs), any(map(channels_last, plan.models))

    @torch.no_grad()
    def answer(x: NDArray[Any]) -> Said:
        """In one pass over all samples, as evaluations do: the last bits may depend on the batch."""
        with one_thread():
            inner = aligned(prepare(torch.from_numpy(x)))
            if last and inner.dim() == 4:
                inner = inner.contiguous(memory_format=torch.channels_last)
            scores = compute_outputs(
                network, move_to(inner, plan.device), plan.experiment.evaluate.batch, fast=plan.fast
            ).cpu()
            return Said(*(t.numpy() for t in meaning(scores, objective_of(plan.data.task))))

    def write(folder: Path, format: Format) -> None:
        twin = network if plan.device == "cpu" else copy.deepcopy(network).cpu()
        _save(plan, Ready(inputs, twin, plan.data.task), card, samples, folder, format)

    return TrainedModel(card, inputs, answer, network.eval(), write)


def _of_client(data: FederatedData, client: int, reading: dict[str, Any]) -> OwnInputs:
    inputs, part = inputs_of(data, client, reading), data.parts[client]
    return OwnInputs(inputs, encode_own(data, inputs, data.dataset.x[[*part.test, *part.train][:TRIED]]))


def inputs_of(data: FederatedData, client: int, reading: dict[str, Any]) -> Inputs:
    dataset, fitted = data.dataset, data.fitted
    shape = tuple(dataset.x.shape[1:])
    if fitted is None:
        dtype = "uint8" if dataset.mean else "int64" if dataset.vocabulary else "float32"
        return Inputs(shape, dtype, dataset.mean, dataset.std)
    dtype = "int64" if fitted.recipe.vocabulary else "uint8" if fitted.recipe.form == "image" else "float64"
    missing = tuple(reading.get("missing", MISSING))
    return Inputs(shape, dtype, fitted=from_state(to_state(fitted.for_client(client))), missing=missing)


def encode_own(data: FederatedData, inputs: Inputs, x: NDArray[Any]) -> NDArray[Any]:
    """A run's samples with categories as the fitted preprocessing numbers them, not as the files have them."""
    recipe, fitted, x = data.dataset.recipe, inputs.fitted, x.astype(inputs.dtype)
    if recipe is None or fitted is None:
        return x
    for column, at in recipe.places():
        if column.kind == "category":
            place = {value: float(k) for k, value in enumerate(fitted.values[column.name])}
            table = np.array([place.get(v, np.nan) for v in recipe.categories[column.name]] + [np.nan])
            x[:, at] = table[np.where(np.isnan(x[:, at]), -1, x[:, at]).astype(np.int64)]
    return x


def _save(plan: Plan, ready: Ready, card: dict[str, Any], samples: NDArray[Any], folder: Path, format: Format) -> None:
    """Write a model's folder, after what will be loaded from it has answered these samples as the network does."""
    check_format(format)
    path = folder / FILES[format]
    if format == "onnx":
        data = onnx_program(exported(ready, samples))
        answer = program_answer(path, data)
    else:
        choice = _architecture(plan, ready.network)
        data, card = stored(ready.network), {**card, "network": described(choice, plan.data.task)}
        own = None if is_ours(choice) else choice
        answer = network_answer(rebuilt_network(path, card, ready.inputs, data, own))
    if len(data) > MOST[path.name]:
        raise RunError(f"{path.name} would have {len(data):,} bytes, but must have at most {MOST[path.name]:,}.")
    with torch.no_grad():
        expected = [t.numpy() for t in ready(torch.from_numpy(samples))]
    off = max(float(np.abs(a - b).max(initial=0)) for a, b in zip(answer(samples), expected, strict=True))
    if not off <= TOLERATED:
        raise RunError(f"the exported {format} model differs from the network by {off:.2g} on this client's samples.")
    write_folder(folder, card, {path.name: data})


def _architecture(plan: Plan, network: nn.Module) -> Choice:
    """Which of the run's networks this is."""
    models = [*zip(plan.experiment.model, plan.models, strict=True)]
    if plan.experiment.server_model is not None and plan.server_model is not None:
        models.append((plan.experiment.server_model, plan.server_model))
    for choice, model in models:
        if str(network) == str(model) and layout(network.state_dict()) == layout(model.state_dict()):
            return choice
    said = f"a model of {plan.experiment.method.name} is a {type(network).__name__}"
    raise ConfigError(f"format is 'torch', which holds one of a run's networks, but {said}: choose the format onnx.")
