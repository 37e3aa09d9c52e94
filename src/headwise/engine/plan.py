"""What the engine runs: an experiment with everything it names already built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..contract.method import Method
from ..data.federated import ClientData, Clients
from ..log.metrics import Metric, main_metric, metrics_to_measure
from ..models.split import SplitModel
from ..settings.experiment import Experiment
from ..settings.options import Drift, Faults, Keepable, Sampling, Stop
from ..tasks.base import Objective
from ..tasks.registry import kind_of, objective_of
from .drift import Drifted, find_drifting
from .mechanism import UNPROTECTED, Mechanism
from .sampling import Trace, newcomers, read_trace, sample_measured

SMALL: Mapping[Keepable, int] = {"best": 2**30, "post": 2**25}
"""Bytes of all clients' models up to which they are kept by default.

The best round's models only take disk space. Post-training models are written in every round, even by methods whose
clients otherwise keep nothing.
"""


@dataclass(frozen=True)
class Plan:
    """Everything a run needs; the same in every process that takes part."""

    experiment: Experiment
    """all settings; read them from here"""
    method: Method[Any, Any, Any, Any]
    models: tuple[SplitModel, ...]
    """the initial network of each architecture; client c uses ``models[c % len(models)]``"""
    data: Clients
    server_model: SplitModel | None = None
    """the server's architecture, if it differs from the first client's"""
    privacy: Mechanism = UNPROTECTED
    epochs_accounted: int | None = None
    """epochs per round that epsilon covers at example level; None, in a rehearsal, allows any number"""
    device: str = "cpu"
    """where this process computes; with several GPUs, each worker has one"""
    _shapes: dict[int, dict[str, torch.Size]] = field(default_factory=dict[int, dict[str, torch.Size]], repr=False)

    @property
    def fast(self) -> bool:
        """Whether to use kernels without autograd and cached features."""
        return self.experiment.engine.kernels == "fast"

    def keeps(self, what: Keepable) -> bool:
        """Whether the run keeps these models for later use: as set, or by default if they are small."""
        chosen = self.experiment.evaluate.keep
        return self._size <= SMALL[what] if chosen is None else what in chosen

    @cached_property
    def _size(self) -> int:
        """Bytes of all clients' models, if each has the largest one."""
        return len(self.data) * max(sum(t.nbytes for t in m.state_dict().values()) for m in self.models)

    def at(self, t: int) -> int:
        """Round t counted from the beginning of the run that this one continues; 0 is before all rounds."""
        return t + self.experiment.origin.rounds if t else 0

    @cached_property
    def newcomers(self) -> tuple[int, ...]:
        """The clients that `evaluate.new_clients` keeps out of training: a function of the seed alone."""
        return tuple(c for c in newcomers(self.experiment, len(self.data)) if c not in self.data.absent)

    @cached_property
    def clients(self) -> Sequence[int]:
        outside = {*self.newcomers, *self.data.absent}
        everyone = range(len(self.data))
        return [c for c in everyone if c not in outside] if outside else everyone

    @cached_property
    def measured(self) -> Sequence[int]:
        """The clients that evaluations measure."""
        return sample_measured(self.experiment.evaluate.clients, self.clients, self.experiment.seed)

    @cached_property
    def drifting(self) -> frozenset[int]:
        return find_drifting(self.experiment, self.clients)

    def client(self, c: int, t: int) -> ClientData | Drifted:
        """This client's samples in round t."""
        return Drifted(self.experiment, self.data, c, t) if c in self.drifting else self.data.client(c)

    @property
    def task(self) -> str:
        return self.data.task.kind

    @cached_property
    def metrics(self) -> Sequence[Metric]:
        """The metrics that evaluations measure; refuses those that do not apply to the task."""
        evaluate = self.experiment.evaluate
        return metrics_to_measure(self.task, evaluate.metrics, evaluate.metric)

    @property
    def metric(self) -> Metric:
        return main_metric(self.experiment.evaluate.metric, self.task)

    @property
    def networks(self) -> tuple[SplitModel, ...]:
        """The initial networks, in the order of the experiment's."""
        return (*self.models, *([self.server_model] if self.server_model else []))

    @property
    def common(self) -> SplitModel:
        return self.models[0] if self.server_model is None else self.server_model

    @cached_property
    def trace(self) -> Trace:
        """The clients of each round; empty if all clients take part. Only the server reads it."""
        path = self.experiment.sampling.trace
        names = self.data.names
        return read_trace(Path(path), len(self.data), names, self.experiment.rounds) if path else ()

    def shapes(self, template: SplitModel) -> Mapping[str, torch.Size]:
        """The shapes in this initial network's state, by name."""
        if id(template) not in self._shapes:
            self._shapes[id(template)] = {k: t.shape for k, t in template.state_dict().items()}
        return self._shapes[id(template)]

    def objective(self, y: Tensor) -> Objective:
        """The loss of a client with these training targets."""
        task = self.data.task
        train = self.experiment.train
        if train.class_weights == "balanced":
            return kind_of(task).balance(task, y, train.label_smoothing)
        return objective_of(task, train.class_weights, train.label_smoothing, self.device)

    def with_settings(self, **settings: Any) -> Plan:
        return replace(self, experiment=replace(self.experiment, **settings))

    def for_rehearsal(self) -> Plan:
        """The same plan with every client in every round and nothing measured, to see what the method does."""
        quiet = replace(self.experiment.evaluate, moments=(), new_clients=0.0, start=False, keep=())
        return self.with_settings(sampling=Sampling(), evaluate=quiet, drift=Drift(), stop=Stop(), faults=Faults())
