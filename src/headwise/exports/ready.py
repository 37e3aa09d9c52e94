"""Preprocessing, network and probabilities as one module: what is exported, and what answers raw samples here.

The torch format stores its weights, and a network that our own code, or the user's, builds again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..data.own.readers.values import BAG, LENGTH
from ..data.preprocessing import Fitted
from ..errors import ConfigError
from ..memory import check_memory
from ..models.base import Model, Task
from ..models.network import title
from ..models.split import SplitModel, laid_out
from ..packed import Packed, from_bytes, to_bytes
from ..settings import catalog
from ..settings.experiment import Choice, find_class
from ..settings.fields import build
from ..settings.networks import NETWORK
from ..tasks.base import Objective
from ..tasks.registry import objective_of
from ..tasks.regression import SquaredError
from .inputs import Inputs


class Ready(nn.Module):
    """From encoded samples (`Inputs.encode`) to scores and probabilities."""

    def __init__(self, inputs: Inputs, network: nn.Module, task: Task) -> None:
        super().__init__()
        self.inputs, self.prepare, self.network = inputs, preparing(inputs), network
        self.objective = objective_of(task)  # now: made while torch traces, its tensors would be fakes, and remembered

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return meaning(self.network(self.prepare(x)), self.objective)


def meaning(outputs: Tensor, objective: Objective) -> tuple[Tensor, Tensor]:
    """The outputs as scores, and the probabilities of classes, labels or pixels; quantities stand in both places."""
    scores = objective.in_target_units(outputs)
    if isinstance(objective, SquaredError):
        return scores, scores.clone()  # ONNX needs two outputs
    return scores, objective.probabilities(outputs)


def preparing(inputs: Inputs) -> nn.Module:
    """The run's own preprocessing, to the bit, as a module."""
    fitted = inputs.fitted
    if fitted is None:
        return Scaling(inputs.mean, inputs.std, torch.float32) if inputs.mean else Casting(inputs.dtype == "int64")
    if fitted.recipe.vocabulary:
        return Casting(True)
    if fitted.recipe.form == "table":
        return Encoding(fitted)
    image = fitted.recipe.form == "image"
    fill = None if image else fitted.fill[0].tolist()
    return Scaling(fitted.mean[0].tolist(), fitted.std[0].tolist(), torch.float64, unit=image, fill=fill)


class Casting(nn.Module):
    """Token numbers stay whole, features become float32."""

    def __init__(self, whole: bool) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, x: Tensor) -> Tensor:
        return x.long() if self.whole else x.float()


class Scaling(nn.Module):
    """(x - mean) / std for each channel, of bytes after division by 255; NaN becomes `fill`."""

    mean: Tensor
    std: Tensor
    fill: Tensor

    def __init__(
        self,
        mean: tuple[float, ...] | list[float],
        std: tuple[float, ...] | list[float],
        dtype: torch.dtype,
        *,
        unit: bool = True,
        fill: list[float] | None = None,
    ) -> None:
        super().__init__()
        self.unit, self.filled, self.dtype = unit, fill is not None, dtype
        for name, values in (("mean", mean), ("std", std), ("fill", fill or [0.0])):
            self.register_buffer(name, torch.tensor(values, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        over = (1, -1) + (1,) * (x.dim() - 2)
        x = x.to(self.dtype) / 255 if self.unit else x.to(self.dtype)
        if self.filled:
            x = torch.where(x.isnan(), self.fill.view(over), x)
        return ((x - self.mean.view(over)) / self.std.view(over)).float()


class Encoding(nn.Module):
    """Rows of a table, [n, columns] with NaN where a value is missing, as `Fitted.transform` encodes them."""

    def __init__(self, fitted: Fitted) -> None:
        super().__init__()
        places = fitted.recipe.places()
        numbers = [at for c, at in places if c.kind == "number"]
        self.categories = [(at, len(fitted.values[c.name])) for c, at in places if c.kind == "category"]
        self.texts = [(at, c.width) for c, at in places if c.kind == "text"]
        self.buckets = min(fitted.recipe.options.buckets, BAG)
        self.numbers: Tensor
        self.flags: Tensor
        self.order: Tensor
        self.mean: Tensor
        self.std: Tensor
        self.fill: Tensor
        self.register_buffer("numbers", torch.tensor(numbers, dtype=torch.int64))
        self.register_buffer("flags", torch.tensor(np.flatnonzero(fitted.flags)))
        self.register_buffer("order", torch.tensor(_order(fitted, self.buckets)))
        for name in ("mean", "std", "fill"):
            self.register_buffer(name, torch.tensor(getattr(fitted, name)[0]))

    def forward(self, x: Tensor) -> Tensor:
        parts: list[Tensor] = []
        if len(self.numbers):
            numbers = x[:, self.numbers]
            gone = numbers.isnan()
            scaled = (torch.where(gone, self.fill, numbers) - self.mean) / self.std
            parts += [scaled.float(), gone[:, self.flags].float()]
        for at, size in self.categories:  # one that is missing or unknown has no place, so its row is zero
            parts.append((x[:, at : at + 1] == torch.arange(size, dtype=x.dtype)).float())
        parts += [_bag(x[:, at : at + width], self.buckets) for at, width in self.texts]
        return torch.cat(parts, 1)[:, self.order]


def _bag(tokens: Tensor, buckets: int) -> Tensor:
    """As `bags` counts words, to the bit; word 0 is none."""
    words = torch.arange(buckets, dtype=tokens.dtype)  # onnxruntime warns of comparisons that it must cast
    counts = (tokens[:, :, None] == words).sum(1).float() * (words > 0)
    norm = counts.sum(1, keepdim=True).sqrt()
    length = torch.full_like(norm, float(LENGTH))  # a tensor: torch divides a number by multiplying with the reciprocal
    return counts.sqrt() * (length / torch.where(norm > 0, norm, length))


def _order(fitted: Fitted, buckets: int) -> list[int]:
    """Where each place of an encoded row is in numbers, flags, categories and texts one after the other."""
    scaled, flagged = fitted.recipe.scaled, np.cumsum(fitted.flags) - 1
    found, k, at = list[int](), 0, scaled + int(fitted.flags.sum())
    for column, _ in fitted.recipe.places():
        if column.kind == "number":
            found += [k, *([scaled + int(flagged[k])] if fitted.flags[k] else [])]
            k += 1
        else:
            width = len(fitted.values[column.name]) if column.kind == "category" else buckets
            found += range(at, at + width)
            at += width
    return found


def is_ours(choice: Choice) -> bool:
    return choice.name in catalog.included("model")


def described(choice: Choice, task: Task) -> dict[str, Any]:
    """For a card: one of our models by name and numbers, or what the user's own is called."""
    if is_ours(choice):
        model = choice.resolved("model").plain()
    else:
        options = choice.options
        name = options.get("called") or str(options.get("factory") or choice.name).replace("\\", "/").split("/")[-1]
        called = title(choice.given) if choice.given is not None else name.split(":")[-1].removesuffix(".py")
        model = {"name": NETWORK, "called": called, "head": options.get("head", "")}
    return {"model": model, "vocabulary": task.vocabulary, "centre": list(task.centre), "spread": list(task.spread)}


def stored(network: nn.Module) -> bytes:
    return to_bytes(Packed({name: t.detach() for name, t in network.state_dict().items()}, {}))


def rebuilt(card: Mapping[str, Any], inputs: Inputs, weights: bytes, network: Any = None) -> Ready:
    """The card's network with these weights, or `network`, as `hw.fit` takes it; `ValueError` if they don't fit."""
    values = from_bytes(weights).tensors
    task = _task(card, inputs)
    model = _ours(card["network"]["model"], task) if network is None else _own(card["network"]["model"], network, task)
    _check_layout(model.state_dict(), values)
    model.load_state_dict(values, assign=True)
    return Ready(inputs, laid_out(model.eval().requires_grad_(False)), task).eval()


def layout(state: Mapping[str, Tensor]) -> dict[str, str]:
    return {name: f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for name, t in state.items()}


def _task(card: Mapping[str, Any], inputs: Inputs) -> Task:
    told, classes = card["network"], len(card["classes"])
    shape, vocabulary = inputs.shape, told["vocabulary"]
    if inputs.fitted is not None:
        shape, vocabulary = inputs.fitted.shape, inputs.fitted.recipe.vocabulary
    scale = tuple(told["centre"]), tuple(told["spread"])
    if {*map(len, scale)} not in ({0}, {classes}):
        raise ValueError(f"its centre and spread must be of {classes} targets")
    return Task(shape, classes, vocabulary, card["task"], *scale)


def _ours(plain: dict[str, Any], task: Task) -> SplitModel:
    """Without memory for its weights, so that its size can be compared with those that there are."""
    if plain["name"] == NETWORK:
        called = plain.get("called", "a network of your own")
        how = f"load it with hw.load_model(folder, network={called}), or export it as ONNX"
        raise ConfigError(f"it holds the weights of {called}, which is not one of Headwise's models: {how}.")
    if plain["name"] not in catalog.included("model"):
        raise ValueError(f"it names the model {plain['name'][:60]!r}, which Headwise does not have")
    options = {k: v for k, v in plain.items() if k != "name"}
    with torch.device("meta"):
        model: SplitModel = build(find_class("model", plain["name"]), options, "model").build(task).eval()
        _check_activations(model, task)
    return model


def _check_activations(model: SplitModel, task: Task) -> None:
    """Refuse a network whose layers could not even hold one sample."""
    sizes: list[int] = []
    hooks = [m.register_forward_hook(lambda m, x, y: sizes.append(y.numel())) for m in model.modules()]
    model(torch.zeros(1, *task.shape, dtype=torch.int64 if task.vocabulary else torch.float32))
    for hook in hooks:
        hook.remove()
    check_memory(8 * max(sizes), "its network")


def _own(plain: dict[str, Any], network: Any, task: Task) -> SplitModel:
    if isinstance(network, Model):
        return network.build(task)
    choice = Choice.parse(network, "model")
    if choice.name == NETWORK and plain.get("head"):
        choice = replace(choice, options={"head": plain["head"], **choice.options})
    return choice.make("model").build(task)


def _check_layout(state: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    wanted, given = layout(state), layout(values)
    for name in dict.fromkeys([*wanted, *given]):
        if wanted.get(name) != given.get(name):
            there = given.get(name, "missing")
            raise ValueError(f"its weight {name[:60]!r} is {there}, but in the network {wanted.get(name, 'missing')}")
