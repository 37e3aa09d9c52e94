"""What a site tells the server about data that the server never has, and the experiment as it travels to sites."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..data.dataset import Source
from ..errors import ConfigError
from ..models.base import Task
from ..settings.experiment import Choice, Experiment
from ..settings.fields import Natural
from ..settings.options import Engine

PARTS = ("train", "val", "test")
LARGEST = 10**6
"""numbers in a sample, classes or tokens that a site can claim to have"""


@dataclass(frozen=True)
class ClientFacts:
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


@dataclass(frozen=True)
class Introduction:
    """How a site introduces itself."""

    name: str
    clients: tuple[Natural, ...]
    told: tuple[ClientFacts, ...]
    refusal: str | None = None


def travelling(experiment: Experiment) -> Experiment:
    """The experiment as it is sent to sites: without what only concerns the server's machine."""
    engine = Engine(kind="flower", kernels=experiment.engine.kernels)
    return replace(experiment, engine=engine)


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
    return travelling(replace(experiment, model=model).resolved())
