"""Ditto — Li et al., *Ditto: Fair and Robust Federated Learning Through Personalization*, ICML 2021.
https://arxiv.org/abs/2012.04221

    paper   here       meaning
    w^t     down.w     the global model, trained as in FedAvg
    v_k     me.v       client k's own model; it never leaves the client
    lambda  lam        how strongly v_k is pulled towards w^t

Departs from the paper: the server weights the w_k by samples, Algorithm 1 takes the plain mean (`ditto@paper`). All of
v_k's epochs come before those of w, where the authors' code alternates; neither model affects the other within a round.
Every client has the same lambda; the paper can choose one per client.

Read: its abstract, its authors' code (https://github.com/litian96/ditto), PFLlib's and FL-bench's files; Algorithm and
equation numbers are from memory.
"""

from dataclasses import dataclass

from headwise.authoring import (
    Averaging, Epochs, Local, NonNegative, Params, Predictor, Record, Shared, Update, join_by_training,
)  # fmt: skip


class Own(Record):
    """A client's own model."""

    v: Params


@dataclass(frozen=True)
class Ditto(Averaging[Own]):
    """FedAvg plus a personal model per client, pulled towards the global one."""

    family = "global and own model"
    travels = "whole model"
    stays = "own model"
    cost = 2
    presets = {"paper": {"weights": "clients"}}

    lam: NonNegative = 1.0
    """pull of the own model towards the global one; 0 trains it alone"""
    personal_epochs: Epochs | None = None
    """epochs on the own model; none: `train.epochs`, as in the paper (public code: always 1)"""

    def client_init(self, local: Local) -> Own:
        return Own(local.init().state())

    def local_update(self, me: Own, down: Shared, local: Local) -> Update[Shared, Own]:
        own, global_model = local.model(me.v), local.model(down.w)
        pull = (self.lam, down.w.restrict(own.live()))
        local.sgd(own, pull=pull, epochs=self.personal_epochs)  # v_k <- v_k - eta (grad F_k(v_k) + lambda (v_k - w^t))
        local.sgd(global_model)  # Algorithm 1: w_k <- UPDATE_GLOBAL(w^t)
        return Update(Shared(global_model.params()), Own(own.state()), own, keep=global_model)

    def personalize(self, me: Own, down: Shared, local: Local) -> Predictor:
        return local.model(me.v)

    def join(self, me: Own, down: Shared, whole: Params | None, local: Local) -> Predictor:
        return join_by_training(self, Own(local.model(down.w).state()), down, local)  # v_k begins as w^t
