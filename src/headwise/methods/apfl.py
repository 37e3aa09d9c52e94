"""APFL — Deng, Kamani and Mahdavi, *Adaptive Personalized Federated Learning*, 2020. https://arxiv.org/abs/2003.13461

    paper     here          meaning
    w_i       global_model  client i's copy of the global model, which is sent back
    v_i       me.v          its own model; it never leaves the client
    alpha_i   me.alpha      how much of v_i is in the mixture
    v-bar_i   -             the mixture alpha_i v_i + (1 - alpha_i) w_i, which is evaluated

All three are updated from their values before the batch: any other order can turn a rising alpha into a falling one.

Departs from the paper: the server weights the w_i by samples, Algorithm 1 takes the plain mean (`apfl@paper`). alpha is
updated on every batch, at the model's learning rate.

Read: its abstract, its authors' code (https://github.com/MLOPTPSU/FedTorch, `centered/apfl.py`), PFLlib's and
FL-bench's files. The authors' code mixes outputs instead of parameters, takes the plain mean, and updates alpha on a
round's first batch only; Algorithm 1 and Section 4.2 are from memory.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headwise.authoring import (
    Averaging, Local, Params, Predictor, Record, Shared, SplitModel, Unit, Update, join_by_training,
)  # fmt: skip


class Own(Record):
    """A client's own model and its mixing coefficient."""

    v: Params
    alpha: Tensor


@dataclass(frozen=True)
class APFL(Averaging[Own]):
    """FedAvg plus a personal model per client, used in a learned mixture with the global one."""

    family = "global and own model"
    travels = "whole model"
    stays = "own model, mixing coefficient"
    cost = 2
    shows = {"me.alpha": "client"}
    presets = {"paper": {"weights": "clients"}}

    alpha: Unit = 0.5
    """initial mixing coefficient: 1 uses only the client's own model, 0 only the global one"""
    adaptive: bool = True
    """learn the mixing coefficient; off: it stays fixed"""

    def client_init(self, local: Local) -> Own:
        return Own(local.init().state(), torch.tensor(self.alpha))

    def local_update(self, me: Own, down: Shared, local: Local) -> Update[Shared, Own]:
        own, global_model = local.model(me.v), local.model(down.w)
        mixing = nn.ParameterDict({"alpha": nn.Parameter(me.alpha.clone())})
        alpha = mixing["alpha"]

        def loss(x: Tensor, y: Tensor) -> Tensor:
            """Gradients as in Algorithm 1: f_i(w) updates only w, f_i(v-bar) updates v and alpha.

            Section 4.2: alpha <- alpha - eta <v - w, grad f_i(v-bar)>, clipped to [0, 1].
            """
            mixture = own.given(_mix(own.weights(), global_model.weights().map(Tensor.detach), alpha))
            return local.loss(global_model, x, y) + local.loss(mixture, x, y)

        def keep_in_range() -> None:
            alpha.clamp_(0, 1)

        learners = (own, global_model, mixing) if self.adaptive else (own, global_model)
        local.sgd(own, global_model, mixing, only=learners, loss=loss, project=keep_in_range)
        me = Own(own.state(), alpha.detach())
        return Update(Shared(global_model.params()), me, self._mixture(me, global_model, local), keep=global_model)

    def personalize(self, me: Own, down: Shared, local: Local) -> Predictor:
        return self._mixture(me, local.model(down.w), local)

    def join(self, me: Own, down: Shared, whole: Params | None, local: Local) -> Predictor:
        return join_by_training(self, Own(local.model(down.w).state(), me.alpha), down, local)  # v_i begins as w

    def _mixture(self, me: Own, global_model: SplitModel, local: Local) -> SplitModel:
        """The mixed model, with the BatchNorm statistics that it gathered in training."""
        w = global_model.weights().map(Tensor.detach)
        return local.model(Params({**me.v, **_mix(me.v.restrict(w), w, me.alpha)}))


def _mix(v: Params, w: Params, alpha: Tensor) -> Params:
    """v-bar = alpha v + (1 - alpha) w."""
    return alpha * v + (1 - alpha) * w
