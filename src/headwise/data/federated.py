"""Clients: their training, validation and test samples as tensors, and the fingerprint of who has what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import DataError
from ..memory import aligned
from ..models.base import Task
from .dataset import Dataset
from .splits import Parts
from .stats import Summary, histograms, summarize

CHUNK = 4096  # samples that are converted at once


@dataclass(frozen=True)
class Samples:
    """Inputs as the model takes them, and labels."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Clients:
    """All samples in one tensor, client after client: what the engine needs of the data, in whatever process it is."""

    task: Task
    x: Tensor
    y: Tensor
    ends: list[list[int]]
    """for each client, where its training, validation and test samples end"""
    told: Mapping[int, tuple[int, ...]] | None = None
    """the classes of clients' training samples as their sites told them, where the samples are elsewhere"""

    def __len__(self) -> int:
        return len(self.ends)

    def sizes(self, c: int) -> tuple[int, int, int]:
        """How many training, validation and test samples this client has."""
        train, val, test = self.ends[c]
        return train - self.start(c), val - train, test - val

    def start(self, c: int) -> int:
        """Where this client's samples begin."""
        return self.ends[c - 1][2] if c else 0

    def labels(self, c: int) -> tuple[int, ...]:
        """The classes of this client's training samples."""
        if self.told is None:
            return tuple(self.client(c).train.y.unique().tolist())
        if c not in self.told:
            raise DataError(f"the site of client {c} does not tell which classes it has: labels = true there lets it.")
        return self.told[c]

    def client(self, c: int) -> ClientData:
        """This client's samples; not copied unless their place among the others' would show in what is computed."""
        return ClientData(self, c)


class ClientData:
    """One client's three parts; only the training part is never empty."""

    def __init__(self, clients: Clients, c: int) -> None:
        self._clients, self._start, self._ends = clients, clients.start(c), clients.ends[c]

    @property
    def train(self) -> Samples:
        """What it learns from."""
        return self._part(self._start, self._ends[0])

    @property
    def val(self) -> Samples:
        """What it chooses by."""
        return self._part(self._ends[0], self._ends[1])

    @property
    def test(self) -> Samples:
        """What its models are measured on."""
        return self._part(self._ends[1], self._ends[2])

    def _part(self, a: int, b: int) -> Samples:
        x, y = self._clients.x[a:b], self._clients.y[a:b]
        return Samples(aligned(x) if x.is_floating_point() else x, y)  # whole numbers are never rounded


class FederatedData:
    """A data set divided over clients. All methods that are compared share one, known by its hash."""

    def __init__(self, dataset: Dataset, parts: list[Parts]) -> None:
        self.dataset, self.parts = dataset, parts
        self._converted: dict[bool, Clients] = {}

    def __len__(self) -> int:
        return len(self.parts)

    @property
    def task(self) -> Task:
        """What a model must know."""
        return Task(tuple(self.dataset.x.shape[1:]), len(self.dataset.classes), self.dataset.vocabulary)

    @cached_property
    def summary(self) -> Summary:
        """Hash, sizes, label histograms and the majority-class floor."""
        return summarize(self.dataset.y, self.parts, len(self.dataset.classes))

    def histograms(self) -> dict[str, list[list[int]]]:
        """For each part, how many samples of each class every client has."""
        groups = {"train": [p.train for p in self.parts], "val": [p.val for p in self.parts]}
        groups["test"] = [p.test for p in self.parts]
        y, classes = self.dataset.y, len(self.dataset.classes)
        return {part: histograms(y, indices, classes).tolist() for part, indices in groups.items()}

    @property
    def has_validation(self) -> bool:
        """Whether some client has samples for choosing between models."""
        return any(len(p.val) for p in self.parts)

    def client(self, c: int) -> ClientData:
        """This client's samples, as tensors."""
        return self.clients().client(c)

    def clients(self, *, channels_last: bool = False) -> Clients:
        """All samples as tensors, converted once; with `channels_last`, images lie as some networks like them best."""
        if channels_last not in self._converted:
            self._converted[channels_last] = self._convert(channels_last)
        return self._converted[channels_last]

    def _convert(self, channels_last: bool) -> Clients:
        parts = [part for p in self.parts for part in (p.train, p.val, p.test)]
        order = np.concatenate(parts) if parts else np.empty(0, np.int64)
        first = to_input(self.dataset, order[:1])
        format = torch.channels_last if channels_last and first.dim() == 4 else torch.contiguous_format
        x = torch.empty((len(order), *first.shape[1:]), dtype=first.dtype, memory_format=format)
        for at in range(0, len(order), CHUNK):
            x[at : at + CHUNK] = to_input(self.dataset, order[at : at + CHUNK])
        ends = np.cumsum([len(part) for part in parts]).reshape(-1, 3).tolist()
        return Clients(self.task, x, torch.from_numpy(self.dataset.y[order]), ends)


def to_input(dataset: Dataset, indices: NDArray[np.int64]) -> Tensor:
    """These samples as the model takes them: images scaled, tokens as integers."""
    x: NDArray[Any] = dataset.x[indices]
    if not dataset.mean:
        return torch.from_numpy(x.astype(np.int64 if dataset.vocabulary else np.float32))
    shape = (1, -1) + (1,) * (x.ndim - 2)
    mean, std = torch.tensor(dataset.mean).view(shape), torch.tensor(dataset.std).view(shape)
    return (torch.from_numpy(x).float() / 255 - mean) / std
