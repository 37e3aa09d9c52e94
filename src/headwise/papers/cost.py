"""How long a table would take on this machine, extrapolated from a few seconds of training steps."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from ..app import registry
from ..app.registry import make
from ..data.dataset import Source
from ..data.splits import parse_split
from ..engine.estimate import training_step
from ..engine.host import cores, one_thread
from ..models.base import Task
from ..models.split import SplitModel, channels_last, lay_out
from ..settings.choices import Choice
from ..settings.experiment import Experiment
from .arithmetic import messages
from .schema import CountedOn

PATIENCE = 1.0
"""seconds spent on timing a network's training steps; forward passes get a third of that"""


@dataclass(frozen=True)
class Facts:
    """What an estimate needs to know about a data set."""

    samples: int
    task: Task
    usual: Choice
    """the network to use if none is named"""


@dataclass(frozen=True)
class Speed:
    """Seconds on one core."""

    train: float
    """per sample of a training step"""
    forward: float
    """per sample of a forward pass"""
    client: float = 0.0
    """overhead per client, however few samples it has"""


class Costs:
    """Estimates running times; reads each data set and times each network once."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self._facts: dict[str, Facts] = {}
        self._speeds: dict[tuple[str, str, int], Speed] = {}

    def seconds(self, experiment: Experiment) -> float:
        """How long this run would take with its workers, on an otherwise idle machine."""
        facts = self._about(experiment.data)
        speed = self._time_network(experiment)
        split = parse_split(experiment.split)
        sampling = experiment.sampling
        often = experiment.evaluate
        samples = facts.samples * experiment.fraction
        parts = split.train + split.val + split.test
        tested = samples * (split.test / parts if not split.official else 1 / 6)  # as CIFAR's public test set
        trained = (samples - tested) * split.train / (parts - split.test)
        drawn = sampling.average
        every_client = sum(m in often.moments for m in ("pre", "global")) / often.every
        judged = tested * (every_client + drawn * ("post" in often.moments))
        relative = float(registry.find("method", experiment.method.name).cost)
        train = experiment.train
        clients = experiment.clients or 20
        learned = clients * train.steps * train.batch if train.steps else trained * train.epochs
        per_round = learned * drawn * relative * speed.train + judged * speed.forward
        per_round += clients * (drawn + every_client) * speed.client
        side_by_side = min(experiment.engine.workers.count or cores(), cores())
        return experiment.rounds * per_round / side_by_side

    def _about(self, choice: Choice) -> Facts:
        name = repr(choice)
        if name not in self._facts:
            source: Source = make("data", choice)
            dataset = source.load(self.data_dir)
            task = Task(tuple(dataset.x.shape[1:]), len(dataset.classes), dataset.vocabulary)
            self._facts[name] = Facts(len(dataset.y), task, Choice(source.default_model))
        return self._facts[name]

    def _time_network(self, experiment: Experiment) -> Speed:
        facts = self._about(experiment.data)
        batch = experiment.train.batch
        choices = experiment.model or (facts.usual,)
        key = (repr(experiment.data), repr(choices), batch)
        if key not in self._speeds:
            timed = [time_steps(make("model", c).build(facts.task), facts.task, batch) for c in choices]
            train, forward = ([getattr(s, what) for s in timed] for what in ("train", "forward"))
            self._speeds[key] = Speed(fmean(train), fmean(forward), _overhead(experiment, choices, facts.task))
        return self._speeds[key]


def time_steps(model: SplitModel, task: Task, batch: int) -> Speed:
    """Time steps of plain SGD, and forward passes, on random samples."""
    x = torch.randint(task.vocabulary, (batch, *task.shape)) if task.vocabulary else torch.randn(batch, *task.shape)
    y = torch.randint(task.classes, (batch,))
    model, x = lay_out(model), x.contiguous(memory_format=torch.channels_last) if channels_last(model) else x
    step = training_step(model, x, y)

    def forward() -> Tensor:
        with torch.no_grad():
            return model(x)

    with one_thread(), torch.random.fork_rng(devices=[]):
        return Speed(_time(step, PATIENCE) / batch, _time(forward, PATIENCE / 3) / batch)


def _overhead(experiment: Experiment, choices: tuple[Choice, ...], task: Task) -> float:
    """Seconds of engine overhead per client, timed with very few samples; text is not timed."""
    if task.vocabulary:
        return 0.0
    tiny = CountedOn(task.shape, task.classes, own=1, clients=4)
    plain = dataclasses.replace(experiment, method=Choice("lg-fedavg"), model=choices, server_model=None)
    return _time(lambda: messages(plain, tiny), PATIENCE / 3) / (2 * tiny.clients)


def _time(do: Callable[[], object], seconds: float) -> float:
    """Mean seconds per call, after a warm-up call."""
    do()
    begun = time.perf_counter()
    count = 0
    while (spent := time.perf_counter() - begun) < seconds or not count:
        do()
        count += 1
    return spent / count


def clock(seconds: float) -> str:
    """A duration for people: `45 s`, `12 min`, `3 h`."""
    if seconds < 100:
        return f"{max(round(seconds), 1)} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:,.0f} h"
