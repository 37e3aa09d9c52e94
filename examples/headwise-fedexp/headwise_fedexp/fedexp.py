"""FedExP — Jhunjhunwala et al., *FedExP: Speeding Up Federated Averaging via Extrapolation*, ICLR 2023.
https://arxiv.org/abs/2301.09604

    paper      here       meaning
    w^(t)      down.w     the global model
    Delta_i    changes    how far client i's training moved it
    Delta-     average    the plain mean of these changes
    eta_g      eta_g      the server's step: at least 1, larger the more the clients' changes disagree
    epsilon    epsilon    keeps the step from growing without bound once the changes cancel out

Departs from the paper: the global model is the last iterate; the paper evaluates the mean of the last two. BatchNorm
statistics, where they travel, are averaged as in FedAvg.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from headwise.authoring import (
    Central,
    Local,
    Method,
    NonNegative,
    Nothing,
    Params,
    Predictor,
    Reply,
    Shared,
    SplitModel,
    Update,
    mean,
)  # fmt: skip


@dataclass(frozen=True)
class FedExP(Method[Shared, Nothing, Shared, Shared]):
    """FedAvg whose server goes beyond the clients' mean, by a step that it computes in each round."""

    family: ClassVar[str] = "one global model"
    travels: ClassVar[str] = "whole model"
    stays: ClassVar[str] = "nothing"
    traffic_down: ClassVar[str] = "P"
    traffic_up: ClassVar[str] = "P"

    epsilon: NonNegative = 0.001
    """added to the mean change's squared norm; a large value is FedAvg with equal weights"""

    def server_init(self, central: Central) -> Shared:
        return Shared(central.init().params())

    def broadcast(self, server: Shared, client: int, central: Central) -> Shared:
        return server

    def aggregate(self, server: Shared, replies: Sequence[Reply[Shared]], central: Central) -> Shared:
        if not replies:
            return server
        w = server.w.restrict(central.init().live())
        changes = [r.up.w.restrict(w) - w for r in replies]
        average = mean(changes)
        spread = sum(float(d.sq_norm()) for d in changes) / (2 * len(changes))
        room = float(average.sq_norm()) + self.epsilon
        eta_g = max(1.0, spread / room) if room else 1.0  # Eq. (8)
        return Shared(Params({**mean(r.up.w for r in replies), **(w + eta_g * average)}))  # Algorithm 1

    def global_model(self, server: Shared, central: Central) -> SplitModel:
        return central.model(server.w)

    def client_init(self, local: Local) -> Nothing:
        return Nothing()

    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Shared, Nothing]:
        m = local.model(down.w)
        local.sgd(m)
        return Update(Shared(m.params()), me, m)

    def personalize(self, me: Nothing, down: Shared, local: Local) -> Predictor:
        return local.model(down.w)
