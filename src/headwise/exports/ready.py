"""Preprocessing, network and probabilities as one module: what is exported, and what answers raw samples here."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from ..data.own.readers.values import BAG, LENGTH
from ..data.preprocessing.fitting import Fitted
from ..models.base import Task
from ..tasks.base import Objective
from ..tasks.registry import objective_of
from ..tasks.regression import Regression
from .inputs import Inputs


class Ready(nn.Module):
    """From encoded samples (`Inputs.encode`) to scores and probabilities."""

    def __init__(self, inputs: Inputs, network: nn.Module, task: Task) -> None:
        super().__init__()
        self.prepare, self.network = preparing(inputs), network
        self.objective = objective_of(task)  # now: made while torch traces, its tensors would be fakes, and remembered

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return meaning(self.network(self.prepare(x)), self.objective)


def meaning(outputs: Tensor, objective: Objective) -> tuple[Tensor, Tensor]:
    """The outputs as scores, and the probabilities of classes, labels or pixels; quantities stand in both places."""
    scores = objective.said(outputs)
    if isinstance(objective, Regression):
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
