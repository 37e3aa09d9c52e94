"""What the server knows of data that it never has: what sites tell about their clients before the first round."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from ..config import Choice, Experiment
from ..data.dataset import Dataset, Source
from ..data.federated import Clients, FederatedData
from ..data.splits import divide_own, parse
from ..data.stats import Floor, Spread, Summary, majority_floor
from ..engine.mechanism import Mechanism
from ..errors import ConfigError, DataError
from ..jsontext import to_json
from ..models.base import Task
from ..plans import Made, plan_for
from ..seeds import seed_of
from ..settings import Natural
from .policy import SiteSettings, travelling

PARTS = ("train", "val", "test")
LARGEST = 10**6
"""numbers in a sample, classes or tokens that a site can claim to have"""


@dataclass(frozen=True)
class Told:
    """What a site tells about one of its clients."""

    client: Natural
    shape: tuple[Natural, ...]
    """of one sample"""
    classes: Natural
    vocabulary: Natural
    sizes: tuple[Natural, ...]
    """how many training, validation and test samples"""
    labels: tuple[tuple[Natural, ...], ...] | None
    """for each part, how many samples of each class; none: the site does not tell"""

    @property
    def task(self) -> Task:
        """What a model must know."""
        return Task(self.shape, self.classes, self.vocabulary)

    @property
    def problem(self) -> str | None:
        """What is wrong with it: a server builds networks by what it is told."""
        lengths = [self.classes] * len(PARTS)
        if len(self.sizes) != len(PARTS) or (self.labels is not None and [len(row) for row in self.labels] != lengths):
            return "tells sizes or classes that do not fit together"
        large = math.prod(self.shape) > LARGEST or self.classes > LARGEST or self.vocabulary > LARGEST
        return "tells of data that are too large to be true" if large or not self.classes else None


def own_data(site: SiteSettings, home: Path, experiment: Experiment) -> FederatedData:
    """The data of this site's clients, from where its own file says; everybody else's are empty."""
    found: dict[int, Dataset] = {}
    for own in sorted(site.clients, key=lambda each: each.id):
        source: Source = Choice.parse(own.source, "data").make("data")
        found[own.id] = source.load(home / own.folder)
    first, *others = found.values()
    for other in others:
        kinds = [(d.x.shape[1:], d.x.dtype, d.classes, d.mean, d.std, d.vocabulary) for d in (first, other)]
        if kinds[0] != kinds[1]:
            raise DataError(f"{site.name} has clients whose data differ in shape, classes or scale.")
    tests = [d.official_test for d in found.values() if d.official_test is not None]
    merged = dataclasses.replace(
        first,
        x=np.concatenate([d.x for d in found.values()]),
        y=np.concatenate([d.y for d in found.values()]),
        official_test=np.concatenate(tests) if len(tests) == len(found) else None,
        owner=None,
    )
    sizes = {c: len(d.y) for c, d in found.items()}
    seed = seed_of(experiment.data_seed, "partition")
    parts = divide_own(merged, sizes, parse(experiment.split), experiment.clients or 0, seed)
    return FederatedData(merged, parts)


def tell(site: SiteSettings, data: Clients, privacy: Mechanism) -> list[Told]:
    """What this site lets the server know about its clients; where they are private as a whole, not even sizes."""
    task = data.task
    found: list[Told] = []
    for own in site.clients:
        sizes = (0, 0, 0) if privacy.hides_sizes else data.sizes(own.id)
        parts = [getattr(data.client(own.id), part).y for part in PARTS]
        labels = tuple(tuple(y.bincount(minlength=task.classes).tolist()) for y in parts)
        told = labels if site.allow.labels and not privacy.protects else None
        found.append(Told(own.id, task.shape, task.classes, task.vocabulary, sizes, told))
    return found


class Elsewhere:
    """Data over clients that are elsewhere, as far as their sites told."""

    def __init__(self, told: Mapping[int, Told], clients: int) -> None:
        self._told, self._count = told, clients
        self.task = next(iter(told.values())).task

    @property
    def clients(self) -> Clients:
        """Without samples; classes only where they are told."""
        known = {c: t.labels[0] for c, t in self._told.items() if t.labels is not None}
        labels = {c: tuple(k for k, n in enumerate(counts) if n) for c, counts in known.items()}
        sizes = [self._told[c].sizes if c in self._told else (0, 0, 0) for c in range(self._count)]
        ends = np.cumsum(np.array(sizes)).reshape(-1, len(PARTS)).tolist()
        nothing = torch.empty((0, *self.task.shape))
        return Clients(self.task, nothing, torch.empty(0, dtype=torch.int64), ends, labels)

    @cached_property
    def summary(self) -> Summary:
        """Sizes as told; the hash is that of the form of the data, since sites may come later."""
        train, val, test = (sum(t.sizes[k] for t in self._told.values()) for k in range(3))
        sizes = [sum(t.sizes) for t in self._told.values()]
        counts = {part: np.array(rows, np.int64) for part, rows in self.histograms().items()}
        known = len(counts["train"]) > 0
        classes = (sum(counts.values()) > 0).sum(1).tolist() if known else [self.task.classes]  # pyright: ignore
        floor = majority_floor(counts["train"], counts["test"]) if known else Floor(None, None)
        digest = hashlib.sha256(to_json([self._count, *dataclasses.astuple(self.task)]).encode()).hexdigest()
        return Summary(self._count, train, val, test, _spread(sizes), _spread(classes), floor, digest)

    def histograms(self) -> dict[str, list[list[int]]]:
        """By class where every site tells, else nothing."""
        rows = [self._told[c].labels for c in range(self._count) if c in self._told]
        known = [r for r in rows if r is not None]
        if len(known) < self._count:
            return {part: [] for part in PARTS}
        return {part: [list(r[k]) for r in known] for k, part in enumerate(PARTS)}


def _spread(values: list[int]) -> Spread:
    return Spread(float(min(values)), float(np.median(values)), float(max(values)))


def for_sites(experiment: Experiment) -> Experiment:
    """The experiment as sites get it: everything that it leaves open written out, without any data at hand."""
    if experiment.partition.name != "natural":
        name = experiment.partition.name
        raise ConfigError(f"partition is {name!r}, but at sites it must be natural: each has what it has.")
    if experiment.clients is None:
        raise ConfigError("clients is missing: sites come and go, so their number must be given.")
    if experiment.fraction < 1:
        raise ConfigError(f"fraction is {experiment.fraction:g}, but at sites it must be 1.")
    for kind, choice in (("method", experiment.method), *(("model", m) for m in experiment.model)):
        if choice.name.endswith(".py"):
            raise ConfigError(f"{kind} is {choice.name!r}, but sites run only what their own Headwise has.")
    source: Source = experiment.data.make("data")
    model = experiment.model or (Choice(source.default_model),)
    return travelling(dataclasses.replace(experiment, model=model).resolved())


def made_from(experiment: Experiment, told: Mapping[int, Told]) -> Made:
    """A run on data that are elsewhere."""
    asked = for_sites(experiment)
    data = Elsewhere(told, asked.clients or 0)
    return Made(asked, plan_for(asked, data.clients), data.summary, data.histograms())
