"""FedAH — Zhou, He et al., *FedAH: Aggregated Head for Personalized Federated Learning*, 2024.
https://arxiv.org/abs/2412.01295

    paper    here            meaning
    r, h     down.w          global feature extractor and head
    h_i      me.h            client i's head after its last participation
    W_i      me.W            element-wise aggregation weights, in [0, 1]
    h^_i     aggregated      the Aggregated Head
    eta      weight_lr       learning rate of the weights (Eqs. (4)-(6); Algorithm 1 swaps the two symbols)
    alpha    train.lr        learning rate of the model

Departs from the paper: the k_i are normalized over the round's clients (Eq. (2) prints a sum over all). The text
trains the weights at the model's rate, at which they hardly move from 1: our default is 1.0, as in the authors' code,
and `fedah@paper` follows the text (decision 8).

The paper does not mention BatchNorm. Here, while W and the head are trained, the body is frozen in evaluation mode; it
uses the running statistics that this client kept (with `buffers = "all"`, the downloaded ones) and does not change
them. The authors' code runs both phases in training mode: each batch is normalized by its own statistics, and running
statistics change in the head phase; in the weight phase only those of a copy do. The body phase is the same in both.

Read: the paper and its authors' code (https://github.com/heyuepeng/FedAH).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from headwise.authoring import (
    Averaging, EpochsOrNone, Local, NonNegative, Params, Predictor, Record, Shared, SplitModel, Unit, Update,
)  # fmt: skip


class Own(Record):
    """A client's head and its aggregation weights."""

    h: Params
    W: Params


@dataclass(frozen=True)
class FedAH(Averaging[Own]):
    """FedRep in which clients start a round from a learned element-wise mixture of their own and the global head."""

    family = "aggregated head"
    travels = "whole model"
    stays = "weights of the head"
    uploaded_fields = ("h",)
    cost = 1.4
    shows = {"me.W": "client class feature"}
    presets = {
        "paper": {"weight_lr": "local"},
        "code": {"weight_lr": 1.0, "refresh": "all"},
    }

    weight_lr: NonNegative | Literal["local"] = 1.0
    """learning rate of the aggregation weights; local: the model's"""
    weight_epochs: EpochsOrNone = 1
    """epochs on the aggregation weights"""
    initial_weight: Unit = 1.0
    """initial aggregation weights: 1 starts from the global head, 0 from the client's own"""
    head_epochs: EpochsOrNone = 1
    """epochs on the head, with the body frozen, before the body's `train.epochs`"""
    refresh: Literal["selected", "all"] = "selected"
    """which clients learn weights in a round: those selected, or all, as in the authors' code"""

    def client_init(self, local: Local) -> Own:
        h = local.init().state("head")
        return Own(h, h.map(lambda t: torch.full_like(t, self.initial_weight)))

    def local_update(self, me: Own, down: Shared, local: Local) -> Update[Shared, Own]:
        m, W = self._aggregate(me, down, local)
        local.sgd(m, only=m.head, epochs=self.head_epochs)  # Eq. (5)
        local.sgd(m, only=m.body)  # Eq. (6)
        return Update(Shared(m.params()), Own(m.state("head"), W), m)

    def personalize(self, me: Own, down: Shared, local: Local) -> Predictor:
        return self._aggregate(me, down, local)[0]  # what Algorithm 1 returns: {r_i, h^_i}

    def updates_idle(self) -> bool:
        return self.refresh == "all"

    def idle_update(self, me: Own, down: Shared, local: Local) -> Own:
        m, W = self._aggregate(me, down, local)
        return Own(m.state("head"), W)

    def _aggregate(self, me: Own, down: Shared, local: Local) -> tuple[SplitModel, Params]:
        """Algorithm 1, lines 6 and 7: the global body with the Aggregated Head, and the weights behind it."""
        m = local.model(down.w)
        h_i = me.h
        step = m.state("head") - h_i  # h - h_i, constant while W is learned

        def loss(W: Params, features: Tensor, y: Tensor) -> Tensor:
            return local.loss(m.head_given(h_i + step * W), features, y)  # L({r, h^_i}), Eq. (3) inside

        rate = None if self.weight_lr == "local" else self.weight_lr
        W = local.descend(
            me.W, loss, epochs=self.weight_epochs, lr=rate, project=lambda W: W.clamp(0, 1), through=m.body
        )  # Eq. (4), clipped to [0, 1]
        aggregated = h_i + step * W  # Eq. (3)
        return local.model(m.state("body") | aggregated), W
