"""FedPHP — Li et al., *FedPHP: Federated Personalization with Inherited Private Models*, ECML PKDD 2021.
https://doi.org/10.1007/978-3-030-86486-6_36

    paper   here      meaning
    -       down.w    the global model
    HPM     me.p      inherited private model: a moving average of the client's models, which is evaluated
    z       me.z      how often the client has taken part
    mu      mu        how much of the HPM is kept at the end of training
    lambda  lam       weight of the transfer from the HPM

    (1)  loss = (1 - lambda) CE(w) + lambda R(w, HPM)          (our numbering: we could not see the paper's)
    (2)  HPM <- mu_z HPM + (1 - mu_z) w_i

mu_z = mu z / (rho T), since a client expects to take part rho T times in T rounds; the HPM starts as the initial model.

Departs from the paper: of its forms of knowledge transfer, this is MMD on the features, with the kernels of public
code. As there, mu_z is at most mu, since some clients take part more often than expected.

Read: its abstract, its author's code (https://github.com/lxcnju/FedRepo) and PFLlib's file.
"""

from dataclasses import dataclass

from torch import Tensor

from headwise.authoring import (
    Averaging, Local, Params, Predictor, Record, Shared, Unit, Update, join_by_training, mean, mmd,
)  # fmt: skip


class Inherited(Record):
    """A client's inherited private model, and how often it has taken part."""

    p: Params
    z: int


@dataclass(frozen=True)
class FedPHP(Averaging[Inherited]):
    """FedAvg in which each client keeps a moving average of its models, uses it, and lets it guide its training."""

    family = "global and own model"
    tasks = ("classification", "multilabel", "regression")
    travels = "whole model"
    stays = "inherited model"
    uploaded_fields = ("p",)
    cost = 1.4

    lam: Unit = 0.1
    """weight of the transfer from the inherited model, against cross-entropy; 0 disables it"""
    mu: Unit = 0.9
    """how much of the inherited model is kept at the end of the run; starts at 0"""

    def client_init(self, local: Local) -> Inherited:
        return Inherited(local.init().state(), 0)

    def local_update(self, me: Inherited, down: Shared, local: Local) -> Update[Shared, Inherited]:
        m, hpm = local.model(down.w), local.model(me.p)
        taught = local.freeze(hpm.body)

        def loss(x: Tensor, y: Tensor) -> Tensor:  # Eq. (1), with R = MMD
            f = m.body(x)
            return (1 - self.lam) * local.loss(m.head, f, y) + self.lam * mmd(f, taught(x))

        local.sgd(m, loss=loss)
        mu_z = self.mu * min(me.z / max(local.ratio * local.T, 1), 1)
        p = mean([m.state(), hpm.state()], [1 - mu_z, mu_z])  # Eq. (2)
        return Update(Shared(m.params()), Inherited(p, me.z + 1), local.model(p), keep=m)

    def personalize(self, me: Inherited, down: Shared, local: Local) -> Predictor:
        return local.model(me.p)

    def join(self, me: Inherited, down: Shared, whole: Params | None, local: Local) -> Predictor:
        return join_by_training(self, Inherited(local.model(down.w).state(), me.z), down, local)  # it inherits w
