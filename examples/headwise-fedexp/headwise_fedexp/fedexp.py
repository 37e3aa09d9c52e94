"""FedExP — Jhunjhunwala et al., *FedExP: Speeding Up Federated Averaging via Extrapolation*, ICLR 2023.
https://arxiv.org/abs/2301.09604

    paper      here       meaning
    w^(t)      down.w     the global model
    Delta_i    changes    how far client i's training moved it
    Delta-     average    the mean of these changes
    eta_g      eta_g      the server's step: at least 1, larger the more the clients' changes disagree
    epsilon    epsilon    keeps the step from growing without bound once the changes cancel out

    (1)  eta_g = max(1, mean of |Delta_i|^2 / (2 (|Delta-|^2 + epsilon)))
    (2)  w <- w + eta_g Delta-

As its authors' code (https://github.com/Divyansh03/FedExP, `main.py` at 34b05a2); the numbers are ours. There, both
means are weighted by samples, and epsilon is multiplied by the clients of a round (`fedexp@code`).

Departs from it: the global model is the last iterate; the code evaluates the mean of the last two. BatchNorm
statistics, where they travel, are averaged as in FedAvg.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from headwise.authoring import (
    Central,
    GlobalModel,
    Local,
    NonNegative,
    Nothing,
    Params,
    Reply,
    Shared,
    Update,
    mean,
)


@dataclass(frozen=True)
class FedExP(GlobalModel[Nothing, Shared]):
    """FedAvg whose server goes beyond the clients' mean, by a step that it computes in each round."""

    family = "one global model"
    travels = "whole model"
    stays = "nothing"
    traffic_down = "P"
    traffic_up = "P"
    presets: ClassVar[dict[str, Any]] = {"code": {"weights": "samples", "epsilon_of": "client"}}

    epsilon: NonNegative = 0.001
    """added to the mean change's squared norm; a large value is FedAvg"""
    epsilon_of: Literal["round", "client"] = "round"
    """what epsilon is of: a round, or (code) each of its clients"""
    weights: Literal["clients", "samples"] = "clients"
    """how clients count in both means: equally, or (code) by their samples"""

    def aggregate(self, server: Shared, replies: Sequence[Reply[Shared]], central: Central) -> Shared:
        if not replies:
            return server
        n = [r.n if self.weights == "samples" else 1 for r in replies]
        w = server.w.restrict(central.init().live())
        changes = [r.up.w.restrict(w) - w for r in replies]
        average = mean(changes, n)
        spread = sum(k * float(d.sq_norm()) for k, d in zip(n, changes, strict=True)) / sum(n)
        room = float(average.sq_norm()) + self.epsilon * (len(replies) if self.epsilon_of == "client" else 1)
        eta_g = max(1.0, spread / (2 * room)) if room else 1.0  # Eq. (1)
        return Shared(Params({**mean((r.up.w for r in replies), n), **(w + eta_g * average)}))  # Eq. (2)

    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Shared, Nothing]:
        m = local.model(down.w)
        local.sgd(m)
        return Update(Shared(m.params()), me, m)
