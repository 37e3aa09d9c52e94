"""Labels that change in the middle of a run: a function of the seed, the client and the round."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..data.federated import Clients, Samples
from ..errors import ConfigError, pluralize
from ..seeds import seed_of
from ..settings.experiment import Experiment
from ..settings.names import SITES
from .sampling import share_of


class Drifted:
    """A client's three parts as they are in round t."""

    def __init__(self, experiment: Experiment, data: Clients, client: int, t: int) -> None:
        drift = self._drift = experiment.drift
        self._own = data.client(client)
        self._later = t >= drift.round
        counts = torch.bincount(self._own.train.y, minlength=data.task.classes)
        order = counts.sort(descending=True, stable=True).indices.tolist()
        rng = torch.Generator().manual_seed(seed_of(experiment.seed, "drift", client))
        other = order[1 + int(torch.randint(len(order) - 1, (), generator=rng))] if len(order) > 1 else order[0]
        self._pair = order[0], other
        self._gone = order[1] if len(order) > 1 and counts[order[1]] else -1

    @property
    def train(self) -> Samples:
        return self._select_current(self._own.train)

    @property
    def val(self) -> Samples:
        return self._select_current(self._own.val)

    @property
    def test(self) -> Samples:
        return self._select_current(self._own.test)

    def _select_current(self, part: Samples) -> Samples:
        if self._drift.what == "swap":
            return Samples(part.x, self._swap(part.y)) if self._later else part
        if self._later == (self._drift.what == "appear"):
            return part
        kept = part.y != self._gone
        return Samples(part.x[kept], part.y[kept])

    def _swap(self, y: Tensor) -> Tensor:
        a, b = self._pair
        return torch.where(y == a, b, torch.where(y == b, a, y))


def find_drifting(experiment: Experiment, clients: Sequence[int]) -> frozenset[int]:
    drift = experiment.drift
    if not drift.round:
        return frozenset()
    if drift.clients:
        return frozenset(drift.clients)
    rng = torch.Generator().manual_seed(seed_of(experiment.seed, "drifting"))
    chosen = torch.randperm(len(clients), generator=rng)[: share_of(drift.share, len(clients))]
    return frozenset(clients[i] for i in chosen.tolist())


def check_drift(experiment: Experiment, clients: int) -> None:
    """Reject drift that starts after the last round, names unknown clients, or conflicts with privacy or sites."""
    drift = experiment.drift
    if drift.round > experiment.rounds:
        raise ConfigError(
            f"drift.round is {drift.round}, but the run has only {pluralize(experiment.rounds, 'round')}."
        )
    if wrong := [c for c in drift.clients if c >= clients]:
        raise ConfigError(f"drift.clients has {wrong[0]}, but the clients are 0 to {clients - 1}.")
    if experiment.privacy.clip is not None:
        raise ConfigError("drift.round is set, but epsilon counts samples that do not change: leave out privacy.clip.")
    if experiment.engine.kind in SITES:
        raise ConfigError(f"drift.round is set, but engine.kind is {experiment.engine.kind!r}: sites keep their data.")
