"""Clients: their training, validation and test samples as tensors, and the fingerprint of who has what."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..models.base import Task
from .dataset import Dataset
from .splits import Parts
from .stats import Summary, histograms, summarize


@dataclass(frozen=True)
class Samples:
    """Inputs as the model takes them, and labels."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class ClientData:
    """One client's three parts; only the training part is never empty."""

    train: Samples
    val: Samples
    test: Samples


class FederatedData:
    """A data set divided over clients. All methods that are compared share one, known by its hash."""

    def __init__(self, dataset: Dataset, parts: list[Parts]) -> None:
        self.dataset, self.parts = dataset, parts
        self.channels_last = False
        """how images lie in memory, as their model likes it best"""
        self._clients: dict[int, ClientData] = {}

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
        """This client's samples, as tensors; converted once."""
        if c not in self._clients:
            p = self.parts[c]
            self._clients[c] = ClientData(self._samples(p.train), self._samples(p.val), self._samples(p.test))
        return self._clients[c]

    def _samples(self, indices: NDArray[np.int64]) -> Samples:
        x = to_input(self.dataset, indices)
        if self.channels_last and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        return Samples(x, torch.from_numpy(self.dataset.y[indices]))


def to_input(dataset: Dataset, indices: NDArray[np.int64]) -> Tensor:
    """These samples as the model takes them: images scaled, tokens as integers."""
    x: NDArray[Any] = dataset.x[indices]
    if not dataset.mean:
        return torch.from_numpy(x.astype(np.int64 if dataset.vocabulary else np.float32))
    shape = (1, -1) + (1,) * (x.ndim - 2)
    mean, std = torch.tensor(dataset.mean).view(shape), torch.tensor(dataset.std).view(shape)
    return (torch.from_numpy(x).float() / 255 - mean) / std
