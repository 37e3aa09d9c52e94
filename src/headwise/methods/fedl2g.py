"""FedL2G — Zhang et al., *FedL2G: Learning to Guide Local Training in Heterogeneous Federated Learning*, 2024.
https://arxiv.org/abs/2410.06490

    paper     here        meaning
    theta_i   me.w        client i's model, of any architecture with the same number of features; it never leaves
    v_c       down.v      guiding vector of class c
    eta_s     server_lr   learning rate of the guiding vectors
    E'        warm_up     rounds in which only the guiding vectors are trained

    (1)  loss of the client's model: l + mean |f - v_y|^2 / K
    (2)  slope of v: that of the quiz samples' loss l after one step on (1) with a study batch
    (3)  v_c <- v_c - eta_s (mean of the slopes of the clients that sent one for class c)

FedL2G-f, which guides features, as its authors' code (https://github.com/TsingZ0/FedL2G, `clientl2g_feat.py`,
`serverl2g_feat.py`); the numbers are ours. (2) is taken after the round's training.

Departs from it: quiz samples are a fixed share of the training samples, not the first batches, and are used all
at once. Neither side clips gradients at 100; `train.clip` exists. Warm-up is 50 rounds in the code
(`fedl2g@code`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from headwise.authoring import (
    Central, Local, Method, Natural, NonNegative, OwnModel, Params, Record, Reply, Share, SplitModel, Update, gradient,
)  # fmt: skip


class Guides(Record):
    """A guiding vector for each class [C, K]."""

    v: Tensor


class Slopes(Record):
    """Slopes of the guiding vectors of a study batch's classes."""

    labels: Tensor
    """[c] int32, ascending"""
    slopes: Tensor
    """[c, K]"""


@dataclass(frozen=True)
class FedL2G(Method[Guides, OwnModel, Guides, Slopes]):
    """Every client trains its own model towards shared feature vectors, which learn how to guide that training."""

    family = "prototypes"
    tasks = ("classification",)
    travels = "a vector per class down, their slopes up"
    stays = "whole model"
    without_body = "fails"
    traffic_down = "C * K"
    traffic_up = "?"  # K + 1 for each class of the study batch
    sums = "labels"
    cost = 1.2
    heterogeneous = "same head"
    presets = {"code": {"warm_up": 50}}

    server_lr: NonNegative = 0.01
    """learning rate of the guiding vectors; 0 keeps them as drawn"""
    quiz: Share = 0.2
    """share of the training samples that the guiding vectors are judged by"""
    warm_up: Natural = 0
    """rounds in which only the guiding vectors are trained"""

    def server_init(self, central: Central) -> Guides:
        drawn = central.draw(lambda: nn.Embedding(central.classes, central.init().width), "fedl2g")
        return Guides(drawn.weight.detach())

    def aggregate(self, server: Guides, replies: Sequence[Reply[Slopes]], central: Central) -> Guides:
        total = torch.zeros_like(server.v)
        count = total.new_zeros(len(total))
        for r in replies:
            total.index_add_(0, r.up.labels, r.up.slopes)
            count.index_add_(0, r.up.labels, count.new_ones(len(r.up.labels)))
        return Guides(server.v - self.server_lr * total / count.clamp(min=1)[:, None])  # Eq. (3)

    def local_update(self, me: OwnModel, down: Guides, local: Local) -> Update[Slopes, OwnModel]:
        m = local.model(me.w)
        rest, quiz = local.hold_out(self.quiz)

        def loss(x: Tensor, y: Tensor) -> Tensor:  # Eq. (1)
            f = m.body(x)
            return local.loss_of(m.head(f), y) + mse_loss(f, down.v[y])

        if local.t > self.warm_up:
            rest.sgd(m, loss=loss)
        study = next(rest.batches(1), None)
        return Update(_slopes(m, down.v, study, quiz, local), OwnModel(m.state()), m)


def _slopes(
    m: SplitModel, v: Tensor, study: tuple[Tensor, Tensor] | None, quiz: tuple[Tensor, Tensor], local: Local
) -> Slopes:
    """Eq. (2), in evaluation mode; nothing if `drop_last` leaves no batch."""
    if study is None:
        return Slopes(torch.zeros(0, dtype=torch.int32), v[:0])
    x, y = study
    theta = m.weights()

    def quiz_loss(p: Params) -> Tensor:
        f = m.body_given(theta.select("body."))(x)
        guided = local.loss_of(m.head_given(theta.select("head."))(f), y) + mse_loss(f, p["v"][y])
        slopes = torch.autograd.grad(guided, list(theta.values()), create_graph=True)
        moved = theta - Params(dict(zip(theta, slopes, strict=True))) * local.lr
        return local.loss(m.given(moved), *quiz)

    labels = y.bincount(minlength=len(v)).nonzero().flatten()
    return Slopes(labels.int(), gradient(quiz_loss, Params(v=v))["v"][labels])
