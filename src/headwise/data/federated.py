"""Clients: their training, validation and test samples as tensors, and the fingerprint of who has what."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import DataError
from ..memory import align
from ..models.base import Task
from ..settings.options import TargetRange
from ..tasks.registry import kind_of
from .dataset import Dataset
from .own.description import PARTS
from .own.raw import map_empty
from .partition.base import count_labels
from .preprocessing import Fitted, Sums, fit, fit_all, mean_and_deviation, measure, sum_clients, sums_from_json
from .splits import NOTHING, Floor, Parts, Summary, hash_partition, summarize

CHUNK = 4096  # samples converted at a time


@dataclass(frozen=True)
class Samples:
    """Inputs as the model takes them, and labels."""

    x: Tensor
    y: Tensor
    weight: Tensor | None = None
    """[n]: of each sample in the loss of training; None: all count the same"""

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Clients:
    """All samples in one tensor, client after client: all the data an engine needs, in any process."""

    task: Task
    x: Tensor
    y: Tensor
    ends: NDArray[np.int64]
    """for each client, where its training, validation and test samples end"""
    reported_labels: Mapping[int, tuple[int, ...]] | None = None
    """the classes of each client's training samples as reported by its site, if the samples stay there"""
    names: tuple[str, ...] = ()
    """of the clients, where the data has names"""
    absent: frozenset[int] = frozenset()
    """numbers of absent clients, which have no samples"""
    weight: Tensor | None = None
    """[n]: float32, of each sample in the loss of training; None: all count the same"""

    def __len__(self) -> int:
        return len(self.ends)

    def describe(self, c: int) -> str:
        """A client's number, and its name if it has one, for messages."""
        return f"client {c} ({self.names[c]})" if c < len(self.names) else f"client {c}"

    def sizes(self, c: int) -> tuple[int, int, int]:
        """How many training, validation and test samples this client has."""
        train, val, test = self.ends[c].tolist()
        return train - self.start(c), val - train, test - val

    def start(self, c: int) -> int:
        """Where this client's samples begin."""
        return int(self.ends[c - 1, 2]) if c else 0

    def labels(self, c: int) -> tuple[int, ...]:
        """The classes of this client's training samples."""
        if self.reported_labels is None:
            return tuple(self.client(c).train.y.unique().tolist())
        if c not in self.reported_labels:
            raise DataError(f"the site of client {c} does not share which classes it has: set labels = true there.")
        return self.reported_labels[c]

    def client(self, c: int) -> ClientData:
        """This client's samples, copied only if their position in memory could change the last bits of a result."""
        return ClientData(self, c)


class ClientData:
    """One client's three parts; only the training part is never empty."""

    def __init__(self, clients: Clients, c: int) -> None:
        self._clients = clients
        self._start = clients.start(c)
        self._ends = clients.ends[c].tolist()

    @property
    def train(self) -> Samples:
        return self._part(self._start, self._ends[0])

    @property
    def val(self) -> Samples:
        return self._part(self._ends[0], self._ends[1])

    @property
    def test(self) -> Samples:
        return self._part(self._ends[1], self._ends[2])

    def _part(self, a: int, b: int) -> Samples:
        x = self._clients.x[a:b]
        weight = None if self._clients.weight is None else self._clients.weight[a:b]
        return Samples(align(x) if x.is_floating_point() else x, self._clients.y[a:b], weight)  # integers stay exact


class FederatedData:
    """A data set divided among clients. Methods that are compared share one, identified by its hash."""

    def __init__(
        self,
        dataset: Dataset,
        parts: list[Parts],
        names: Sequence[str] = (),
        sums: Sums | None = None,
        *,
        absent: Collection[int] = (),
        newcomers: Collection[int] = (),
    ) -> None:
        self.dataset = dataset
        self.absent = frozenset(absent)
        self._newcomers = frozenset(newcomers)
        self.parts = [Parts(NOTHING, NOTHING, NOTHING) if c in self.absent else p for c, p in enumerate(parts)]
        self._sums = sums
        self.names = tuple(names)
        """of natural clients; empty for others, which have only numbers"""
        self._converted: dict[bool, Clients] = {}

    def __len__(self) -> int:
        return len(self.parts)

    @cached_property
    def task(self) -> Task:
        """What a model must know; quantities are scaled by their range, or by the training clients' samples."""
        data = self.dataset
        shape = self.fitted.shape if self.fitted else tuple(data.x.shape[1:])
        task = Task(shape, len(data.classes), data.vocabulary, data.task)
        if not kind_of(data.task).quantitative:
            return task
        trains = [p.train for c, p in enumerate(self.parts) if c not in self._newcomers]
        sums = self._sums.targets if self._sums is not None else sum_clients(data.y, trains)
        return _with_scale(task, data.target_range, sums)

    @cached_property
    def fitted(self) -> Fitted | None:
        """The preprocessing of a user's own data, fitted on the training clients, or on all sites' sums."""
        recipe = self.dataset.recipe
        trains = [p.train for p in self.parts]
        if recipe is None or self._sums is None:
            return recipe and fit_all(recipe, self.dataset.x, trains, self._newcomers)
        own = [measure(recipe, self.dataset.x[t]) for t in trains] if recipe.options.fit == "client" else []
        return fit(recipe, self._sums, own)

    @cached_property
    def summary(self) -> Summary:
        """Hash, sizes, label histograms and the majority-class floor; other tasks have their own floor."""
        labels, names = self.dataset.strata
        summary = summarize(labels, self.parts, len(names))
        if kind_of(self.dataset.task).one_class:
            return summary
        return replace(summary, floor=Floor(None, None), hash=hash_partition(self.dataset.y, self.parts))

    def histograms(self) -> dict[str, list[list[int]]]:
        """For each part, how many samples of each class, or of each of the dataset's strata, every client has."""
        labels, names = self.dataset.strata
        groups = {part: [getattr(p, part) for p in self.parts] for part in PARTS}
        return {part: count_labels(labels, indices, len(names)).tolist() for part, indices in groups.items()}

    def client(self, c: int) -> ClientData:
        return self.clients().client(c)

    def clients(self, *, channels_last: bool = False) -> Clients:
        """All samples as tensors, converted once; some networks are faster on `channels_last` images."""
        if channels_last not in self._converted:
            self._converted[channels_last] = self._convert(channels_last)
        return self._converted[channels_last]

    def _convert(self, channels_last: bool) -> Clients:
        parts = [part for p in self.parts for part in (p.train, p.val, p.test)]
        order = np.concatenate(parts) if parts else NOTHING
        ends = np.cumsum([len(part) for part in parts]).reshape(-1, 3)
        who = np.repeat(np.arange(len(ends)), np.diff(ends[:, 2], prepend=0))
        first = self._to_input(order[:1], who[:1])
        x = self._empty_tensor((len(order), *first.shape[1:]), first, channels_last)
        for at in range(0, len(order), CHUNK):
            x[at : at + CHUNK] = self._to_input(order[at : at + CHUNK], who[at : at + CHUNK])
        y = torch.from_numpy(self.dataset.y[order])
        weight = None if self.dataset.weight is None else torch.from_numpy(self.dataset.weight[order])
        return Clients(self.task, x, y, ends, names=self.names, absent=self.absent, weight=weight)

    def _to_input(self, indices: NDArray[np.int64], who: NDArray[np.int64]) -> Tensor:
        """These samples, of these clients, as the model takes them: preprocessed or scaled, tokens as integers."""
        data = self.dataset
        x: NDArray[Any] = data.x[indices]
        if self.fitted is not None:
            return torch.from_numpy(self.fitted.transform(x, who))
        if not data.mean:
            return torch.from_numpy(x.astype(np.int64 if data.vocabulary else np.float32))
        shape = (1, -1) + (1,) * (x.ndim - 2)
        mean = torch.tensor(data.mean).view(shape)
        std = torch.tensor(data.std).view(shape)
        return (torch.from_numpy(x).float() / 255 - mean) / std

    def _empty_tensor(self, shape: tuple[int, ...], like: Tensor, channels_last: bool) -> Tensor:
        """An empty tensor for all samples: in a mapped file if the data set is in one, since it may exceed memory."""
        last = channels_last and like.dim() == 4
        x = self.dataset.x
        if isinstance(x, np.memmap) or not isinstance(x, np.ndarray):  # pyright: ignore[reportUnnecessaryIsInstance]
            stored = (shape[0], *shape[2:], shape[1]) if last else shape
            x = torch.from_numpy(map_empty(stored, like.numpy().dtype))
            return x.movedim(-1, 1) if last else x
        layout = torch.channels_last if last else torch.contiguous_format
        return torch.empty(shape, dtype=like.dtype, memory_format=layout)


def clients_at_sites(
    task: Task,
    sizes: Sequence[Sequence[int]],
    reported_labels: Mapping[int, tuple[int, ...]],
    names: tuple[str, ...] = (),
) -> Clients:
    """Clients with these numbers of training, validation and test samples, which stay at their sites."""
    ends = np.cumsum(np.array(sizes, np.int64)).reshape(-1, 3)
    return Clients(task, torch.empty((0, *task.shape)), torch.empty(0, dtype=torch.int64), ends, reported_labels, names)


def task_at_sites(task: Task, statistics: str, target_range: TargetRange | None) -> Task:
    """A task as sites report it, with the inputs and the scale of quantities that follow from the sums of all sites."""
    if not statistics:
        return task if target_range is None else _with_scale(task, target_range, np.zeros((3, 0)))
    recipe, sums = sums_from_json(statistics)
    task = replace(task, shape=fit(recipe, sums).shape)
    return _with_scale(task, target_range, sums.targets) if kind_of(task).quantitative else task


def _with_scale(task: Task, target_range: TargetRange | None, sums: NDArray[np.float64]) -> Task:
    """With the scale of quantities: the middle of their range, or else their mean and deviation."""
    scale = [a.tolist() for a in mean_and_deviation(sums)] if target_range is None else target_range.scale()
    return replace(task, centre=tuple(scale[0]), spread=tuple(scale[1]))
