"""q-FedAvg — Li et al., *Fair Resource Allocation in Federated Learning*, ICLR 2020. https://arxiv.org/abs/1905.10497

    paper      here           meaning
    w^t        down.w         the global model
    F_k(w^t)   up.loss        client k's loss under the model that it was sent
    L          1 / train.lr   estimate of the Lipschitz constant; a client sends its rate with its model
    q          q              how much clients with a larger loss count; 0 is FedAvg with equal weights

    (1)  D_k = L (w^t - w_k),  h_k = q F_k^(q-1) ||D_k||^2 + L F_k^q
    (2)  w <- w^t - sum_k F_k^q D_k / sum_k h_k

Algorithm 2 of the paper, and its authors' code (https://github.com/litian96/fair_flearn, `qffedavg.py`); the numbers
are ours. Departs from it: clients are drawn uniformly, as in every run. A larger q makes shorter steps. BatchNorm
statistics, where they travel, are averaged with equal weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from headwise.authoring import (
    Central, Local, Method, NonNegative, Nothing, Optimizers, Params, Predictor, Record, Reply, Shared, SplitModel,
    Update, mean,
)  # fmt: skip

TINY = 1e-10  # as in the authors' code: keeps a power of a loss of 0 finite


class Trained(Record):
    """A client's model, its loss before training, and its learning rate."""

    w: Params
    loss: float
    lr: float


@dataclass(frozen=True)
class QFedAvg(Method[Shared, Nothing, Shared, Trained]):
    """FedAvg in which clients with a larger loss count more, so that accuracies become more equal."""

    family: ClassVar[str] = "one global model"
    travels: ClassVar[str] = "whole model; loss and rate up"
    stays: ClassVar[str] = "nothing"
    optimizers: ClassVar[Optimizers] = "sgd"
    traffic_down: ClassVar[str] = "P"
    traffic_up: ClassVar[str] = "P + 2"
    cost: ClassVar[float] = 1.3

    q: NonNegative = 0.1
    """how much clients with a larger loss count; 0 is FedAvg with equal weights"""

    def server_init(self, central: Central) -> Shared:
        return Shared(central.init().params())

    def broadcast(self, server: Shared, client: int, central: Central) -> Shared:
        return server

    def aggregate(self, server: Shared, replies: Sequence[Reply[Trained]], central: Central) -> Shared:
        if not replies:
            return server
        w, total, h = server.w.restrict(central.init().live()), list[Params](), 0.0
        for r in replies:
            F, L = r.up.loss + TINY, 1 / r.up.lr
            D = L * (w - r.up.w.restrict(w))
            total.append(F**self.q * D)
            h += self.q * F ** (self.q - 1) * float(D.sq_norm()) + L * F**self.q  # Eq. (1)
        average = mean(r.up.w for r in replies)
        return Shared(Params({**average, **(w - mean(total) * (len(total) / h))}))  # Eq. (2)

    def global_model(self, server: Shared, central: Central) -> SplitModel | None:
        return central.model(server.w)

    def client_init(self, local: Local) -> Nothing:
        return Nothing()

    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Trained, Nothing]:
        m = local.model(down.w)
        with torch.no_grad():
            parts = [(local.loss(m, x, y), len(y)) for x, y in local.batches(1)]
        loss = sum(float(value) * n for value, n in parts) / max(sum(n for _, n in parts), 1)
        local.sgd(m)
        return Update(Trained(m.params(), loss, local.lr), me, m)

    def personalize(self, me: Nothing, down: Shared, local: Local) -> Predictor:
        return local.model(down.w)
