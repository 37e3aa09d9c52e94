"""FedTGP — Zhang et al., *FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning for
Data and Model Heterogeneity in Federated Learning*, AAAI 2024. https://arxiv.org/abs/2401.03230

    paper       here        meaning
    P_i^c       up.means    prototype: mean feature of client i's samples of class c
    P^^c        down.means  trainable global prototype: class c's vector, through a layer, ReLU and a layer
    delta       margin      adaptive margin: the largest distance from a class to the nearest other, at most tau
    tau         most        its bound
    lambda      lam         weight of staying near the global prototypes
    S           epochs      epochs of the server

    (1)  loss of the server: CE(-(|P_i^c - P^^k| + delta [k = c]) over all k, c), mean over a batch of prototypes
    (2)  loss of a client: l + lambda mean |f - P^^y|^2 / K; in round 1 without the second term

As its authors' code (https://github.com/TsingZ0/FedTGP, `servertgp.py`, `clienttgp.py`); the numbers are ours.

Departs from it: class means are of the trained model; the code reads the client's model from disk before it stores what
it trained, and so sends those of the model before (`fedtgp@code`). Clients predict with their heads (code: by the
nearest global prototype). Its script takes lambda = 10 and far more epochs of the server. A margin needs two classes in
a round, or else it is tau.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, mse_loss, one_hot, relu

from headwise.authoring import (
    Central, ClassMeans, Count, Local, Method, NonNegative, OwnModel, Params, Positive, Record, Reply, Update, descend,
    shuffle,
)  # fmt: skip


class Server(Record):
    """The vectors and layers that make the prototypes, and whether they have been trained."""

    net: Params
    begun: bool


class Prototypes(Record):
    """The global prototypes [C, K], and whether they have been trained."""

    means: Tensor
    begun: bool


@dataclass(frozen=True)
class FedTGP(Method[Server, OwnModel, Prototypes, ClassMeans]):
    """Every client trains its own model near class vectors that the server trains to be close to theirs and apart."""

    family = "prototypes"
    tasks = ("classification",)
    travels = "class means"
    stays = "whole model"
    traffic_down = "C * K + 1 / 4"  # a boolean takes one byte
    traffic_up = "c * (K + 1)"
    cost = 1.4
    heterogeneous = "same head"
    presets = {"code": {"prototypes": "before", "lam": 10.0}}

    lam: NonNegative = 1.0
    """weight of staying near the global prototypes; 0 is local training"""
    prototypes: Literal["after", "before"] = "after"
    """the class means are of a client's model after its training or (code) before it"""
    most: Positive = 100.0
    """largest margin"""
    epochs: Count = 100
    """epochs of the server on a round's class means"""
    server_lr: Positive = 0.01
    """learning rate of the server"""
    batch: Count = 10
    """class means per step of the server"""

    def server_init(self, central: Central) -> Server:
        K = central.init().width
        table = central.draw(lambda: nn.Embedding(central.classes, K), "fedtgp", "table")
        layers = central.draw(lambda: nn.Sequential(nn.Linear(K, K), nn.ReLU(), nn.Linear(K, K)), "fedtgp")
        return Server(Params({"table": table.weight.detach(), **layers.state_dict()}), begun=False)

    def broadcast(self, server: Server, client: int, central: Central) -> Prototypes:
        return Prototypes(_prototypes(server.net), server.begun)

    def aggregate(self, server: Server, replies: Sequence[Reply[ClassMeans]], central: Central) -> Server:
        if not any(len(r.up.labels) for r in replies):
            return server
        means = torch.cat([r.up.means for r in replies])
        labels = torch.cat([r.up.labels for r in replies]).long()
        delta = self._margin(means, labels)
        net = server.net

        def loss(net: Params, i: Tensor) -> Tensor:  # Eq. (1)
            squared = (means[i][:, None] - _prototypes(net)).square().sum(2)
            apart = squared.clamp(min=1e-12).sqrt() + delta * one_hot(labels[i], central.classes)
            return cross_entropy(-apart, labels[i])

        for _ in range(self.epochs):
            net = descend(net, loss, shuffle(len(labels), self.batch, central.rng), self.server_lr)
        return Server(net, begun=True)

    def local_update(self, me: OwnModel, down: Prototypes, local: Local) -> Update[ClassMeans, OwnModel]:
        m = local.model(me.w)
        pull = self.lam if down.begun else 0.0

        def loss(x: Tensor, y: Tensor) -> Tensor:  # Eq. (2)
            f = m.body(x)
            return local.loss_of(m.head(f), y) + pull * mse_loss(f, down.means[y])

        before = local.class_means(m.body) if self.prototypes == "before" else None
        local.sgd(m, loss=loss)
        return Update(before or local.class_means(m.body), OwnModel(m.state()), m)

    def _margin(self, means: Tensor, labels: Tensor) -> float:
        """delta: of the mean prototypes of the round's classes."""
        centres = torch.stack([means[labels == c].mean(0) for c in labels.bincount().nonzero().flatten()])
        if len(centres) < 2:
            return self.most
        apart = (centres[:, None] - centres).square().sum(2).sqrt()
        nearest = (apart + torch.diag(torch.full((len(apart),), float("inf")))).amin(1)
        return min(float(nearest.max()), self.most)


def _prototypes(net: Params) -> Tensor:
    hidden = relu(linear(net["table"], net["0.weight"], net["0.bias"]))
    return linear(hidden, net["2.weight"], net["2.bias"])
