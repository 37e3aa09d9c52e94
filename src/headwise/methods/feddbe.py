"""FedDBE — Zhang et al., *Eliminating Domain Bias for Federated Learning in Representation Space*, NeurIPS 2023.
https://arxiv.org/abs/2311.14975

    paper      here         meaning
    theta      down.w       the global model: feature extractor and classifier
    zbar^g     down.centre  consensual mean of the features
    zbar_i^p   me.v         personalized representation bias memory (PRBM) of client i, added to its features
    zbar_i^g   mean         running mean of client i's features, without the bias: from 0, each batch moves it by mu
    kappa      kappa        weight of the mean regularization (MR)
    mu         mu           weight of a batch in the running mean

This is FedAvg+DBE as its authors' code (https://github.com/TsingZ0/DBE, `clientDBE.py`, `serverDBE.py`): before the
first round, each client trains the initial model like in a round, but without DBE, sends the running mean of its
features, and drops what it trained; MR is half the mean squared distance; the running mean starts anew in each round.
The number of the paper's algorithm is from memory.

Departs from the paper: the authors' script takes kappa = 50 at a rate of 0.005; our kappa suits a rate of 0.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headwise.authoring import (
    Central, Composed, Local, Method, NonNegative, Params, Predictor, Record, Reply, Shared, SplitModel, Unit, Update,
)  # fmt: skip


class Global(Record):
    """What the server keeps, and sends to all clients."""

    w: Params
    centre: Tensor


class Feature(Record):
    """A vector of features: a client's bias or, as its answer before the first round, its running mean."""

    v: Tensor


@dataclass(frozen=True)
class FedDBE(Method[Global, Feature, Global, Shared]):
    """FedAvg in which a client's bias in feature space is a vector of its own, and the body is kept free of it."""

    family = "partial sharing"
    tasks = ("classification", "multilabel", "regression")
    travels = "whole model, mean feature down"
    stays = "bias of the features"
    traffic_down = "P + K"
    traffic_up = "P"
    sums = "samples"
    census = Feature

    kappa: NonNegative = 1.0
    """weight of the distance between a client's mean feature and the consensual one"""
    mu: Unit = 1.0
    """weight of the newest batch in a client's mean feature"""

    def server_init(self, central: Central) -> Global:
        m = central.init()
        return Global(m.params(), torch.zeros(m.width))

    def answer_census(self, local: Local) -> Feature:
        m = local.init()
        running = Running(self.mu, m.width)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = m.body(x)
            running.update(z)
            return local.loss_of(m.head(z), y)

        local.sgd(m, loss=loss)  # Algorithm 1, initialization: only zbar_i^g stays of these epochs
        return Feature(running.mean)

    def use_census(self, server: Global, replies: Sequence[Reply[Feature]], central: Central) -> Global:
        means = torch.stack([r.up.v for r in replies]).double()
        n = torch.tensor([r.n for r in replies], dtype=torch.float64)
        return Global(server.w, (n / n.sum() @ means).float())  # Algorithm 1, initialization: zbar^g

    def aggregate(self, server: Global, replies: Sequence[Reply[Shared]], central: Central) -> Global:
        if not replies:
            return server
        return Global(central.mean([r.up.w for r in replies], [r.n for r in replies], server.w), server.centre)

    def global_model(self, server: Global, central: Central) -> SplitModel:
        return central.model(server.w)

    def client_init(self, local: Local) -> Feature:
        return Feature(torch.zeros(local.init().width))

    def local_update(self, me: Feature, down: Global, local: Local) -> Update[Shared, Feature]:
        m = local.model(down.w)
        bias = Bias(me.v)
        running = Running(self.mu, m.width)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = m.body(x)
            apart = (running.update(z) - down.centre).square().mean() / 2
            return local.loss_of(m.head(z + bias.p), y) + self.kappa * apart  # Algorithm 1: PRBM, and kappa times MR

        local.sgd(m, bias, loss=loss)  # Algorithm 1: theta and zbar_i^p learn together
        return Update(Shared(m.params()), Feature(bias.p.detach().clone()), _personal(m, bias.p.detach()), keep=m)

    def personalize(self, me: Feature, down: Global, local: Local) -> Predictor:
        return _personal(local.model(down.w), me.v)


class Running:
    """MR: zbar_i^g <- (1 - mu) zbar_i^g + mu times the batch's mean feature, with gradients through the batch only."""

    def __init__(self, mu: float, width: int) -> None:
        self.mu = mu
        self.mean = torch.zeros(width)

    def update(self, z: Tensor) -> Tensor:
        mean = (1 - self.mu) * self.mean.type_as(z) + self.mu * z.mean(0)
        self.mean = mean.detach()
        return mean


class Bias(nn.Module):
    """PRBM: z = z^g + zbar_i^p, with a trainable zbar_i^p."""

    def __init__(self, p: Tensor) -> None:
        nn.Module.__init__(self)
        self.p = nn.Parameter(p.clone())


def _personal(m: SplitModel, bias: Tensor) -> Predictor:
    def predict(x: Tensor, m: SplitModel, bias: Tensor) -> Tensor:
        return m.head(m.body(x) + bias)

    return Composed(predict, m=m, bias=bias)
