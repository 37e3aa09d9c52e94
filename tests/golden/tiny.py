"""The federation of `byhand`, as the engine runs it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from byhand import CLIENTS, START, Weights
from torch import Tensor, nn

from headwise.data.dataset import Dataset
from headwise.data.federated import FederatedData
from headwise.data.splits import Parts
from headwise.engine.client.client_bench import ClientBench
from headwise.engine.client.state import ClientState
from headwise.engine.plan import Plan
from headwise.methods.fedavg import FedAvg
from headwise.models.split import SplitModel
from headwise.params import Params
from headwise.records import Record
from headwise.settings.experiment import Experiment
from headwise.settings.options import Sampling, Train
from headwise.testing.toy import play

Client = tuple[Tensor, Tensor]


def floats(w: Weights) -> Params:
    return Params({k: t.float() for k, t in w.items()})


def data_of(clients: list[Client], classes: int = 3) -> FederatedData:
    """Every client's samples are for training and for test."""
    x = torch.cat([x for x, _ in clients]).numpy().astype(np.float32)
    y = torch.cat([y for _, y in clients]).numpy().astype(np.int64)
    blocks = np.split(np.arange(len(y)), np.cumsum([len(y) for _, y in clients])[:-1])
    dataset = Dataset(x, y, tuple(map(str, range(classes))))
    return FederatedData(dataset, [Parts(b, b[:0], b) for b in blocks])


def model_of(start: Weights = START) -> SplitModel:
    model = SplitModel(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Linear(2, 3))
    model.load_state_dict({k: t.float() for k, t in start.items()})
    return model.eval()


def plan_of(
    method: Any = None,
    clients: list[Client] = CLIENTS,
    *,
    model: SplitModel | None = None,
    rounds: int = 1,
    ratio: float = 1.0,
    **train: Any,
) -> Plan:
    settings = Train(**{"batch": 100, "lr": 0.5, **train})
    experiment = Experiment(rounds=rounds, train=settings, sampling=Sampling(ratio))
    return Plan(experiment, method or FedAvg(), (model or model_of(),), data_of(clients).clients())


class End(NamedTuple):
    server: Any
    states: dict[int, ClientState]
    rows: list[dict[str, Any]]
    lines: list[dict[str, Any]]


def run(plan: Plan) -> End:
    ended = play(plan).ended
    server: Record = ended[-1].progress.server
    return End(server, dict(ended[-1].states), [e.row for e in ended], [c for e in ended for c in e.clients])


def bench(plan: Plan, client: int = 0, t: int = 1, trained: int = 0, purpose: str = "fit") -> ClientBench:
    return ClientBench(plan, client, t, purpose=purpose, kept=Params(), trained=trained)
