"""MOON — Li, He and Song, *Model-Contrastive Federated Learning*, CVPR 2021. https://arxiv.org/abs/2103.16257

    paper      here      meaning
    w^t        down.w    the global model
    w_i^t-1    me.prev   client i's model after its last participation; the initial model before the first
    z          z         a sample's features under the model in training
    z_glob     z_glob    the same under the global model
    z_prev     z_prev    the same under w_i^t-1
    mu         mu        weight of the contrastive loss
    tau        tau       temperature

Departs from the paper: the features are the head's input; there is no projection head in between.

Read: its abstract and its authors' code (https://github.com/QinbinLi/MOON, `main.py`), which contrasts the outputs of a
projection head. Numbers of the paper's sections, equations and algorithms are from memory.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import cosine_similarity, softplus

from headwise.authoring import Averaging, Local, NonNegative, Params, Positive, Record, Shared, Update


class Previous(Record):
    """The last model that a client sent."""

    prev: Params


@dataclass(frozen=True)
class MOON(Averaging[Previous]):
    """FedAvg in which clients keep features near the global model's and away from their previous local model's."""

    family = "one global model"
    tasks = ("classification", "multilabel", "regression")
    travels = "whole model"
    stays = "last local model (a copy is sent)"
    uploaded_fields = ("prev",)
    cost = 1.7

    mu: NonNegative = 1.0
    """weight of the contrastive loss; 0 is FedAvg"""
    tau: Positive = 0.5
    """temperature of the contrastive loss"""

    def client_init(self, local: Local) -> Previous:
        return Previous(local.init().state())

    def local_update(self, me: Previous, down: Shared, local: Local) -> Update[Shared, Previous]:
        m = local.model(down.w)
        z_glob, z_prev = (local.freeze(local.model(w).body) for w in (down.w, me.prev))

        def loss(x: Tensor, y: Tensor) -> Tensor:  # Algorithm 1: l = l_sup + mu l_con
            z = m.body(x)
            return local.loss(m.head, z, y) + self.mu * self._contrast(z, z_glob(x), z_prev(x))

        local.sgd(m, loss=loss)
        return Update(Shared(m.params()), Previous(m.state()), m)

    def _contrast(self, z: Tensor, z_glob: Tensor, z_prev: Tensor) -> Tensor:
        """l_con = -log(e^g / (e^g + e^p)) = log(1 + e^(p - g)), where g and p are the similarities over tau."""
        g, p = cosine_similarity(z, z_glob) / self.tau, cosine_similarity(z, z_prev) / self.tau
        return softplus(p - g).mean()
