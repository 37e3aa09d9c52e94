"""q-FedAvg — Li et al., *Fair Resource Allocation in Federated Learning*, ICLR 2020. https://arxiv.org/abs/1905.10497

    paper      here           meaning
    w^t        down.w         the global model
    F_k(w^t)   up.loss        client k's loss under the model that it was sent
    L          1 / train.lr   estimate of the Lipschitz constant; a client sends its rate with its model
    q          q              how much clients with a larger loss count; 0 is FedAvg with equal weights

    (1)  D_k = L (w^t - w_k),  h_k = q F_k^(q-1) ||D_k||^2 + L F_k^q
    (2)  w <- w^t - sum_k F_k^q D_k / sum_k h_k

Algorithm 2 of the paper (from memory), as its authors' code (https://github.com/litian96/fair_flearn, `qffedavg.py`);
the numbers are ours. Departs from it: clients are drawn uniformly, as in every run. A larger q makes shorter steps.
BatchNorm statistics, where they travel, are averaged with equal weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from headwise.authoring import (
    Central, GlobalModel, Local, NonNegative, Nothing, Params, Record, Reply, Shared, Update, mean,
)  # fmt: skip

TINY = 1e-10  # as in the authors' code: keeps a power of a loss of 0 finite


class Trained(Record):
    """A client's model, its loss before training, and its learning rate."""

    w: Params
    loss: float
    lr: float


@dataclass(frozen=True)
class QFedAvg(GlobalModel[Nothing, Trained]):
    """FedAvg in which clients with a larger loss count more, so that accuracies become more equal."""

    family = "one global model"
    travels = "whole model; loss and rate up"
    stays = "nothing"
    optimizers = "sgd"
    traffic_down = "P"
    traffic_up = "P + 2"
    cost = 1.3

    q: NonNegative = 0.1
    """how much clients with a larger loss count; 0 is FedAvg with equal weights"""

    def aggregate(self, server: Shared, replies: Sequence[Reply[Trained]], central: Central) -> Shared:
        if not replies:
            return server
        w = server.w.restrict(central.init().live())
        total = list[Params]()
        h = 0.0
        for r in replies:
            F = r.up.loss + TINY
            L = 1 / r.up.lr
            D = L * (w - r.up.w.restrict(w))
            total.append(F**self.q * D)
            h += self.q * F ** (self.q - 1) * float(D.sq_norm()) + L * F**self.q  # Eq. (1)
        average = mean(r.up.w for r in replies)
        return Shared(Params({**average, **(w - mean(total) * (len(total) / h))}))  # Eq. (2)

    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Trained, Nothing]:
        m = local.model(down.w)
        with torch.no_grad():
            parts = [(local.loss(m, x, y), len(y)) for x, y in local.batches(1)]
        loss = sum(float(value) * n for value, n in parts) / max(sum(n for _, n in parts), 1)
        local.sgd(m)
        return Update(Trained(m.params(), loss, local.lr), me, m)
