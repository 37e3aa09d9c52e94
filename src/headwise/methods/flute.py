"""FLUTE — Liu, Shen and Yang, *Federated Representation Learning in the Under-Parameterized Regime*, ICML 2024.
https://arxiv.org/abs/2406.04596

    paper       here              meaning
    B           down.w            the shared representation
    w_i         down.h            client i's head; the server adjusts it after each round
    W           -                 the weights [C, K] of the head's last layer
    u           u                 [C] 1 for the classes that client i holds, else 0
    lambda_1-3  lam1, lam2, lam3  weights of the regularizers

    (1)  N(W) = | W W^T / |W W^T| - (I - 1/C) * u u^T / sqrt(C - 1) |, Frobenius norms, * element by element
    (2)  loss of the head: l + lambda_1 N(W) + lambda_2 |W|^2
    (3)  loss of the whole model: (2) + lambda_3 |features of the batch|^2
    (4)  at the server: W_i <- W_i - server_lr / (clients of the round) grad N(W_i)

FLUTE* for deep networks, as its authors' code (https://github.com/RenpuLiu/flute, `main_flute.py`, `models/Update.py`);
the numbers are ours. Their server knows which classes each client holds; so does ours, except under privacy, where it
takes all. Departs from it: epochs on the head come on top of `train.epochs`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.authoring import (
    Central, EpochsOrNone, Local, Method, NonNegative, Nothing, Params, Predictor, Record, Reply, Update, gradient,
    last_matrix, mean, merge_by_client, step,
)  # fmt: skip


class Server(Record):
    """The shared body, and the adjusted head of each client that has trained."""

    w: Params
    heads: dict[int, Params]


class Parts(Record):
    """A body and a client's head."""

    w: Params
    h: Params


@dataclass(frozen=True)
class FLUTE(Method[Server, Nothing, Parts, Parts]):
    """FedRep with heads that client and server push towards equal angles between the client's classes."""

    family = "shared body"
    tasks = ("classification",)
    travels = "whole model"
    stays = "nothing"
    traffic_down = "P"
    traffic_up = "P"
    cost = 1.4

    head_epochs: EpochsOrNone = 10
    """epochs on the head, with the body frozen, before the `train.epochs` of the whole model"""
    lam1: NonNegative = 0.25
    """weight of the angles between the head's classes"""
    lam2: NonNegative = 0.0025
    """weight of the head's squared norm"""
    lam3: NonNegative = 0.0005
    """weight of the squared norm of a batch's features"""
    server_lr: NonNegative = 0.5
    """learning rate of the server's step on the angles"""

    def server_init(self, central: Central) -> Server:
        return Server(central.init().params("body"), {})

    def broadcast(self, server: Server, client: int, central: Central) -> Parts:
        return Parts(server.w, server.heads.get(client) or central.init().params("head"))

    def aggregate(self, server: Server, replies: Sequence[Reply[Parts]], central: Central) -> Server:
        if not replies:
            return server
        heads = dict[int, Params]()
        rate = self.server_lr / len(replies)
        for r in replies:
            name = last_matrix(r.up.h)
            u = torch.zeros(central.classes)
            u[list(central.labels(r.client))] = 1
            W = Params({name: r.up.h[name]})
            slope = gradient(lambda p, name=name, u=u: _angles(p[name], u), W)
            heads[r.client] = Params({**r.up.h, **step(W, slope, rate)})  # Eq. (4)
        w = mean((r.up.w for r in replies), [r.n for r in replies])
        return Server(w, merge_by_client(server.heads, heads))

    def local_update(self, me: Nothing, down: Parts, local: Local) -> Update[Parts, Nothing]:
        m = local.model(down.w | down.h)
        W = m.weights("head")[last_matrix(down.h)]
        u = (local.class_counts > 0).type_as(W)

        def of_head(f: Tensor, y: Tensor) -> Tensor:  # Eq. (2)
            return local.loss_of(m.head(f), y) + self.lam1 * _angles(W, u) + self.lam2 * W.square().sum()

        def of_model(x: Tensor, y: Tensor) -> Tensor:  # Eq. (3)
            f = m.body(x)
            return of_head(f, y) + self.lam3 * f.square().sum()

        frozen = local.freeze(m.body)
        local.sgd(m, only=m.head, epochs=self.head_epochs, loss=lambda x, y: of_head(frozen(x), y))
        local.sgd(m, loss=of_model)
        return Update(Parts(m.params("body"), m.params("head")), me, m)

    def personalize(self, me: Nothing, down: Parts, local: Local) -> Predictor:
        return local.model(down.w | down.h)


def _angles(W: Tensor, u: Tensor) -> Tensor:
    """Eq. (1)."""
    C = len(W)
    G = W @ W.T
    target = (torch.eye(C).type_as(W) - 1 / C) * torch.outer(u, u) / (C - 1) ** 0.5
    return (G / G.square().sum().sqrt() - target).square().sum().sqrt()
