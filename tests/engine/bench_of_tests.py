"""Small federations, and what happens when the driver runs over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from headwise.data.dataset import Dataset
from headwise.data.federated import FederatedData
from headwise.data.splits import Parts
from headwise.engine.driver import drive
from headwise.engine.events import Event, RoundEnded
from headwise.engine.executors.local import Serial
from headwise.engine.plan import Plan
from headwise.models.mlp import MLP
from headwise.models.split import SplitModel
from headwise.settings.experiment import Experiment
from headwise.settings.options import Train


def federation(parts: Sequence[tuple[Sequence[int], ...]], features: int = 4, classes: int = 3) -> FederatedData:
    """Clients by the labels of their training, validation and test samples; the features follow the labels."""
    labels = [list(part) for client in parts for part in client]
    y = np.array([label for part in labels for label in part], dtype=np.int64)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((len(y), features)).astype(np.float32)
    x[:, 0] += 3 * y
    ends = np.cumsum([0, *map(len, labels)])
    indices = [np.arange(a, b) for a, b in pairwise(ends)]
    named = tuple(f"class {k}" for k in range(classes))
    return FederatedData(Dataset(x, y, named), [Parts(*indices[i : i + 3]) for i in range(0, len(indices), 3)])


def even_federation(clients: int = 6, validation: int = 0) -> FederatedData:
    """Every client has nine training and six test samples of all three classes."""
    return federation([([0, 1, 2] * 3, [0, 1, 2] * validation, [0, 1, 2] * 2)] * clients)


def prepare(method: Any, data: FederatedData, models: Sequence[SplitModel] = (), **changes: Any) -> Plan:
    """A plan with a tiny network, unless told otherwise."""
    torch.manual_seed(0)
    nets = tuple(models) or (MLP(hidden=5).build(data.task),)
    experiment = Experiment(**{"train": Train(batch=4), "rounds": 3, **changes})
    return Plan(experiment, method, tuple(m.eval() for m in nets), data.clients())


@dataclass
class Played:
    """What the driver told its observers."""

    ended: list[RoundEnded] = field(default_factory=list)
    reason: str = ""

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [{k: v for k, v in e.row.items() if k not in ("seconds", "memory")} for e in self.ended]

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [line for e in self.ended for line in e.clients]

    def see(self, event: Event) -> None:
        if isinstance(event, RoundEnded):
            self.ended.append(event)


def play(plan: Plan) -> Played:
    """Drive all rounds in this process."""
    played = Played()
    played.reason = drive(plan, Serial(plan), [played.see])
    return played
