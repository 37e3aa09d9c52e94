"""What the engine runs: an experiment with everything it names already built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..contract.method import Method
from ..data.federated import Clients
from ..log.choosing import judging
from ..log.metrics import Metric
from ..models.split import SplitModel
from ..settings.experiment import Experiment
from ..tasks.base import Objective
from ..tasks.registry import balanced, objective_of
from .mechanism import UNPROTECTED, Mechanism


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

    @property
    def task(self) -> str:
        """What kind of prediction."""
        return self.data.task.kind

    @property
    def metric(self) -> Metric:
        """By which the run is judged."""
        return judging(self.experiment.evaluate.metric, self.task)

    @property
    def common(self) -> SplitModel:
        return self.models[0] if self.server_model is None else self.server_model

    def shapes(self, template: SplitModel) -> Mapping[str, torch.Size]:
        """The shapes in this initial network's state, by name."""
        if id(template) not in self._shapes:
            self._shapes[id(template)] = {k: t.shape for k, t in template.state_dict().items()}
        return self._shapes[id(template)]

    def objective(self, y: Tensor) -> Objective:
        """What a client with these training targets learns by."""
        task, train = self.data.task, self.experiment.train
        if train.class_weights == "balanced":
            return balanced(task, y, train.label_smoothing)
        return objective_of(task, train.class_weights, train.label_smoothing, self.device)

    def changed(self, **settings: Any) -> Plan:
        """The same plan with these settings of the experiment replaced."""
        return replace(self, experiment=replace(self.experiment, **settings))
