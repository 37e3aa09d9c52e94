"""FedAH — Zhou, He et al., *FedAH: Aggregated Head for Personalized Federated Learning*, 2024.
https://arxiv.org/abs/2412.01295

    paper    here            meaning
    r, h     down.w          global feature extractor and head
    h_i      me.h            client i's head after its last participation
    W_i      me.W            element-wise aggregation weights, in [0, 1]
    h^_i     aggregated      the Aggregated Head
    eta      weight_lr       learning rate of the weights (Eqs. (4)-(6); Algorithm 1 swaps the two symbols)
    alpha    train.lr        learning rate of the model

Departs from the paper: the k_i are normalised over the round's clients (Eq. (2) prints a sum over all). The text says
that the weights learn at the model's rate, at which they hardly leave 1: the default is the 1.0 of the authors' code,
the text is `fedah@paper` (decision 8).

BatchNorm, of which the paper says nothing: while W and the head learn, the body is frozen and in evaluation mode, with
the running statistics that this client kept (`buffers = "all"`: the downloaded ones), and these don't move. In the
authors' code both phases run in training mode: each batch is normalised by itself; the running statistics move in the
head phase, in the weight phase only those of a copy. Only the body phase is the same in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ..contract.averaging import Averaging, Shared
from ..contract.method import Local, Predictor, Update
from ..models.split import SplitModel
from ..params import Params
from ..records import Record
from ..settings.fields import EpochsOrNone, NonNegative, Unit


class Own(Record):
    """A client's head and its aggregation weights."""

    h: Params
    W: Params


@dataclass(frozen=True)
class FedAH(Averaging[Own]):
    """FedRep, whose clients start each round from a learned element-wise mixture of their own and the global head."""

    family: ClassVar[str] = "aggregated head"
    travels: ClassVar[str] = "whole model"
    stays: ClassVar[str] = "weights of the head"
    leaves: ClassVar[tuple[str, ...]] = ("h",)
    cost: ClassVar[float] = 1.4
    shows: ClassVar[Mapping[str, str]] = {"me.W": "client class feature"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"weight_lr": "local"},
        "code": {"weight_lr": 1.0, "refresh": "all"},
    }

    weight_lr: NonNegative | Literal["local"] = 1.0
    """learning rate of the aggregation weights; local: that of the model"""
    weight_epochs: EpochsOrNone = 1
    """epochs on the aggregation weights"""
    initial_weight: Unit = 1.0
    """weights before the first round: 1 starts from the global head, 0 from one's own"""
    head_epochs: EpochsOrNone = 1
    """epochs on the head, with the body frozen, before the body's `train.epochs`"""
    refresh: Literal["selected", "all"] = "selected"
    """who learns weights in a round: the clients drawn, or all of them, as the authors' code does"""

    def client_init(self, local: Local) -> Own:
        h = local.init().state("head")
        return Own(h, h.map(lambda t: torch.full_like(t, self.initial_weight)))

    def local_update(self, me: Own, down: Shared, local: Local) -> Update[Shared, Own]:
        m, W = self._aggregated(me, down, local)
        local.sgd(m, only=m.head, epochs=self.head_epochs)  # Eq. (5)
        local.sgd(m, only=m.body)  # Eq. (6)
        return Update(Shared(m.params()), Own(m.state("head"), W), m)

    def personalize(self, me: Own, down: Shared, local: Local) -> Predictor:
        return self._aggregated(me, down, local)[0]  # what Algorithm 1 returns: {r_i, h^_i}

    def updates_idle(self) -> bool:
        return self.refresh == "all"

    def idle_update(self, me: Own, down: Shared, local: Local) -> Own:
        m, W = self._aggregated(me, down, local)
        return Own(m.state("head"), W)

    def _aggregated(self, me: Own, down: Shared, local: Local) -> tuple[SplitModel, Params]:
        """Algorithm 1, lines 6 and 7: the global body under the Aggregated Head, and the weights that made it."""
        m = local.model(down.w)
        h_i, step = me.h, m.state("head") - me.h  # h - h_i, constant while W is learned

        def loss(W: Params, features: Tensor, y: Tensor) -> Tensor:
            return local.loss(m.head_given(h_i + step * W), features, y)  # L({r, h^_i}), Eq. (3) inside

        W = local.descend(
            me.W,
            loss,
            epochs=self.weight_epochs,
            lr=None if self.weight_lr == "local" else self.weight_lr,
            project=lambda W: W.map(lambda w: w.clamp(0, 1)),
            through=m.body,
        )  # Eq. (4), clipped to [0, 1]
        aggregated = h_i + step * W  # Eq. (3)
        return local.model(m.state("body") | aggregated), W
