"""MR-MTL — Liu et al., *On Privacy and Personalization in Cross-Silo Federated Learning*, NeurIPS 2022.
https://arxiv.org/abs/2206.07902

    paper    here     meaning
    w_k      me.w     client k's personal model, from which it continues
    w-       down.w   the mean of the clients' personal models
    lambda   lam      how strongly w_k is pulled towards w-

    (1)  loss of client k: F_k(w_k) + lambda/2 ||w_k - w-||^2

Mean-regularized multi-task learning, as the abstract and its authors' code
(https://github.com/kenziyuliu/private-cross-silo-fl, `trainers/mrmtl.py`); the number is ours.

Departs from the paper, in which all clients take part: w- is the mean over the round's clients, weighted by samples
unless asked (`mr-mtl@paper`). As in the paper, clients can train with DP-SGD (`privacy.level = "example"`): the pull is
added to gradients that are private already. A new client starts from w-.
"""

from dataclasses import dataclass

from headwise.authoring import (
    Averaging, Local, NonNegative, OwnModel, Params, Predictor, Shared, Update, join_by_training,
)  # fmt: skip


@dataclass(frozen=True)
class MRMTL(Averaging[OwnModel]):
    """Every client trains its own model, pulled towards the mean of all."""

    family = "personal aggregation"
    travels = "whole model"
    stays = "whole model (a copy is sent)"
    uploaded_fields = ("w",)
    cost = 1.1
    presets = {"paper": {"weights": "clients"}}

    lam: NonNegative = 0.1
    """pull towards the mean; 0 is local training"""

    def local_update(self, me: OwnModel, down: Shared, local: Local) -> Update[Shared, OwnModel]:
        m = local.model(me.w)
        local.sgd(m, pull=(self.lam, down.w.restrict(m.live())))  # Eq. (1)
        return Update(Shared(m.params()), OwnModel(m.state()), m)

    def join(self, me: OwnModel, down: Shared, whole: Params | None, local: Local) -> Predictor:
        return join_by_training(self, OwnModel(local.model(down.w).state()), down, local)
