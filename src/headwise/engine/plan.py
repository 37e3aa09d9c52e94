"""What the engine runs: an experiment, and everything that it names, built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..contract.method import Method
from ..data.federated import Clients
from ..models.split import SplitModel
from ..settings.experiment import Experiment
from .mechanism import UNPROTECTED, Mechanism


@dataclass(frozen=True)
class Plan:
    """Everything that a run needs, built; the same in every process that takes part in it."""

    experiment: Experiment
    """all settings; whoever needs one reads it here"""
    method: Method[Any, Any, Any, Any]
    models: tuple[SplitModel, ...]
    """the initial network of each architecture; client c has number c modulo their count"""
    data: Clients
    server_model: SplitModel | None = None
    """the server's own architecture, where it is not the first client's"""
    privacy: Mechanism = UNPROTECTED
    """what is done to what leaves a client"""
    epochs_accounted: int | None = None
    """epochs of a round that epsilon counts where examples are protected; none: any number, in a rehearsal"""
    device: str = "cpu"
    """where this process computes: of several GPUs each worker has one"""
    _shapes: dict[int, dict[str, torch.Size]] = field(default_factory=dict[int, dict[str, torch.Size]], repr=False)

    @property
    def fast(self) -> bool:
        """Whether to take shortcuts: kernels without autograd, and features that are kept."""
        return self.experiment.engine.kernels == "fast"

    @property
    def common(self) -> SplitModel:
        """The server's initial network."""
        return self.models[0] if self.server_model is None else self.server_model

    def shapes(self, template: SplitModel) -> Mapping[str, torch.Size]:
        """The shape of everything that this initial network's state names."""
        if id(template) not in self._shapes:
            self._shapes[id(template)] = {k: t.shape for k, t in template.state_dict().items()}
        return self._shapes[id(template)]

    def changed(self, **settings: Any) -> Plan:
        """The same plan under other settings."""
        return replace(self, experiment=replace(self.experiment, **settings))
