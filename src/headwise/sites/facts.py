"""The facts about its data that a site shares with the server, and the experiment as sites receive it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ..app import registry
from ..data.dataset import Source
from ..data.own.description import PARTS
from ..data.preprocessing import add_sums, describe_difference, sums_from_json
from ..disk.files import digest
from ..disk.jsontext import to_json
from ..errors import ConfigError, DataError
from ..models.base import Task
from ..settings.choices import NETWORK, Choice
from ..settings.experiment import Experiment
from ..settings.fields import Natural
from ..settings.foreign import read_foreign
from ..settings.options import Engine, TaskName
from ..tasks.base import DEFAULT

STATISTICS = "statistics"
"""the option of a user's own data that holds the sums of all sites"""
CLASSES = "classes"
"""the option that names the study's classes"""
FILES = ("path", "sha256", "files")
"""options of a user's own data that name files"""
DIMENSIONS = 8
"""most dimensions of a sample that a site may claim"""
LARGEST = 10**6
"""most values per sample, classes or tokens that a site may claim"""


@dataclass(frozen=True)
class ClientFacts:
    client: Natural
    shape: tuple[Natural, ...]
    """of one sample"""
    classes: Natural
    vocabulary: Natural
    sizes: tuple[Natural, ...]
    """training, validation and test samples"""
    labels: tuple[tuple[Natural, ...], ...] | None
    """samples per class in each part; None if the site does not share them"""
    sums: str = ""
    """sums of its training samples' features and quantities, for their scale; empty if the site does not share them"""
    kind: TaskName = DEFAULT

    @property
    def task(self) -> Task:
        return Task(self.shape, self.classes, self.vocabulary, self.kind)

    def difference(self, other: ClientFacts, home: str) -> str:
        """How its data differ from another client's, which is at the site `home`; "" if they fit together."""
        if self.kind != other.kind:
            return f"has data for {self.kind}, but {home} has data for {other.kind}"
        if bool(self.sums) != bool(other.sums):
            return f"and {home} differ in whether they share sums of their features: set allow.sums at all sites"
        if not self.sums:
            return "" if self.task == other.task else f"has data of the form {self.task}, but {home} has {other.task}"
        if self.classes != other.classes:
            return f"has {self.classes} classes, but {home} has {other.classes}"
        differs = describe_difference(self.sums, other.sums)  # not the shape, which is known once all sums are added up
        return differs and f"has other features or preprocessing than {home}: {differs}"

    @property
    def problem(self) -> str | None:
        """Why these facts can't be true, if so: the server sizes its networks by them."""
        lengths = [self.classes] * len(PARTS)
        if len(self.sizes) != len(PARTS) or (self.labels is not None and [len(row) for row in self.labels] != lengths):
            return "reports sizes or classes that contradict each other"
        try:
            if self.sums and sums_from_json(self.sums)[1].targets.shape[1] not in (0, self.classes):
                return "reports sums of other targets than it has"
        except DataError as error:
            return f"reports facts that can't be true: {error}"
        large = len(self.shape) > DIMENSIONS or math.prod(self.shape) > LARGEST
        large |= self.classes > LARGEST or self.vocabulary > LARGEST
        return "reports data of an implausible size" if large or not self.classes else None


@dataclass(frozen=True)
class Introduction:
    name: str
    clients: tuple[Natural, ...]
    facts: tuple[ClientFacts, ...]
    version: str
    """of the site's Headwise"""
    refusal: str | None = None


def pool_sums(experiment: Experiment, facts: Mapping[int, ClientFacts]) -> Experiment:
    """The experiment with the sums of all clients, if their sites share them: preprocessing is fitted on those."""
    sums = [facts[c].sums for c in sorted(facts)]
    if not sums or not all(sums):
        return experiment
    data = experiment.data
    return replace(experiment, data=Choice(data.name, {**data.options, STATISTICS: add_sums(sums)}))


def write_for_sites(experiment: Experiment) -> str:
    """The experiment as sites receive it, in JSON: without the server's own files, folders and machine."""
    text = to_json(without_files(experiment).to_plain())
    try:
        read_foreign(text)
    except ConfigError as error:
        raise ConfigError(f"sites can't be sent this experiment: {error}") from error
    return text


def without_files(experiment: Experiment) -> Experiment:
    """The experiment without settings that only apply to the machine where it was written."""
    data = experiment.data
    own = {key: type(value)() for key, value in data.options.items() if key in FILES}
    name = Path(data.name).stem if data.name.endswith(".py") else data.name
    data = Choice(name, {**data.options, **own}, data.values)
    return replace(experiment, data=data, sampling=replace(experiment.sampling, trace=""))


def resolve_for_sites(experiment: Experiment) -> Experiment:
    """The experiment with every default filled in, and the engine of sites; works without the data."""
    if experiment.partition.name != "natural":
        raise ConfigError(f"partition is {experiment.partition.name!r}, but must be natural: sites keep their data.")
    if experiment.clients is None:
        raise ConfigError("clients is missing: give the number of clients at all sites, since sites come and go.")
    if experiment.fraction < 1:
        raise ConfigError(f"fraction is {experiment.fraction:g}, but must be 1 for clients at sites.")
    if experiment.without or experiment.evaluate.new_clients:
        name = "without" if experiment.without else "evaluate.new_clients"
        raise ConfigError(
            f"{name} is set, but only simulations know all clients: for clients at sites, start only those you want."
        )
    for kind, choice in (("method", experiment.method), *(("model", m) for m in experiment.model)):
        if choice.name.endswith(".py") or choice.name == NETWORK:
            raise ConfigError(f"{kind} is {choice.name!r}, but sites only run what their own Headwise includes.")
    if own := [a.name for a in experiment.train.augment if not a.is_built_in]:
        raise ConfigError(f"train.augment is {own[0]!r}, but sites only run what their own Headwise includes.")
    source: Source = registry.make("data", experiment.data)
    model = experiment.model or (Choice(source.default_model),)
    resolved = registry.resolve_all(replace(experiment, model=model))
    return replace(resolved, engine=Engine(kind="flower", kernels=resolved.engine.kernels))


def experiment_hash(experiment: Experiment) -> str:
    """Identifies an experiment on a signed list: covers every setting except those of the machine."""
    plain = without_files(experiment).to_plain()
    plain["data"].pop(STATISTICS, None)  # which, like the task, the server only knows once sites have reported it
    plain.pop("task")  # a site refuses any other than that of its data
    plain["engine"] = {"kernels": experiment.engine.kernels}
    return digest(to_json(plain, sort_keys=True).encode())
