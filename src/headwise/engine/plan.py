"""What the engine runs: everything that an experiment names, built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..contract.method import Method
from ..data.federated import Clients
from ..models.split import SplitModel
from ..settings.options import Evaluate, Faults, Kernels, Robust, Sampling, Secure, Stop, Train
from .mechanism import UNPROTECTED, Mechanism


@dataclass(frozen=True)
class Plan:
    """Everything that a run needs, built; the same in every process that takes part in it."""

    method: Method[Any, Any, Any, Any]
    models: tuple[SplitModel, ...]
    """the initial network of each architecture; client c has number c modulo their count"""
    data: Clients
    train: Train
    sampling: Sampling
    evaluate: Evaluate
    stop: Stop
    rounds: int
    seed: int
    device: str = "cpu"
    server_model: SplitModel | None = None
    """the server's own architecture, where it is not the first client's"""
    kernels: Kernels = "fast"
    """how clients train; see `Engine.kernels`"""
    faults: Faults = field(default_factory=Faults)
    """what happens when a client fails"""
    robust: Robust = field(default_factory=Robust)
    """how the server averages"""
    privacy: Mechanism = UNPROTECTED
    """what is done to what leaves a client"""
    secure: Secure = field(default_factory=Secure)
    """whether sites mask what leaves them"""
    epochs_accounted: int | None = None
    """epochs of a round that epsilon counts where examples are protected; none: any number, in a rehearsal"""
    _shapes: dict[int, dict[str, torch.Size]] = field(default_factory=dict[int, dict[str, torch.Size]], repr=False)

    @property
    def fast(self) -> bool:
        """Whether to take shortcuts: kernels without autograd, and features that are kept."""
        return self.kernels == "fast"

    def shapes(self, template: SplitModel) -> Mapping[str, torch.Size]:
        """The shape of everything that this initial network's state names."""
        if id(template) not in self._shapes:
            self._shapes[id(template)] = {k: t.shape for k, t in template.state_dict().items()}
        return self._shapes[id(template)]

    @property
    def common(self) -> SplitModel:
        """The server's initial network."""
        return self.models[0] if self.server_model is None else self.server_model
