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
from ..data.preprocessing.states import from_plain, plain
from ..engine.client.predictions import passed
from ..engine.host.devices import on
from ..engine.host.process import one_thread
from ..engine.plan import Plan
from ..errors import RunError
from ..memory import aligned
from ..models.split import channels_last
from ..packed import Packed, to_bytes
from ..tasks.registry import objective_of
from .card import PROGRAMS, WEIGHTS, write_folder
from .inputs import Inputs
from .loading import runner
from .model import Format, Said, TrainedModel
from .programs import exported, onnx_program, torch_program
from .ready import Ready, meaning, preparing

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
            scores = passed(network, on(inner, plan.device), plan.experiment.evaluate.batch, fast=plan.fast).cpu()
            return Said(*(t.numpy() for t in meaning(scores, objective_of(plan.data.task))))

    def write(folder: Path, format: Format) -> None:
        twin = network if plan.device == "cpu" else copy.deepcopy(network).cpu()
        _save(Ready(inputs, twin, plan.data.task), card, samples, folder, format)

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
    return Inputs(shape, dtype, fitted=from_plain(plain(fitted.of(client))), missing=missing)


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


def _save(ready: Ready, card: dict[str, Any], samples: NDArray[Any], folder: Path, format: Format) -> None:
    """Write a model's folder, after its program has answered these samples as the network does."""
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
