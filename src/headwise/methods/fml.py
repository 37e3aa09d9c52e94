"""FML — Shen et al., *Federated Mutual Learning*, 2020. https://arxiv.org/abs/2006.16765

    paper          here       meaning
    w_local        me.w       personalized model, of any architecture; it never leaves the client
    w_meme         down.w     meme model: the client's fork of the global model, of the server's architecture
    alpha, beta    the same   weight of the labels against the other model, for the personalized model and the meme

Departs from the paper: gradients are clipped, as in public code, but those of both models together. The personalized
model starts with its own random head: from the same start both models would take the same steps, and the first upload
would be the personalized model itself.

Read: its abstract, its authors' code (https://github.com/ZJU-DAI/Federated-Mutual-Learning) and PFLlib's file. Numbers
of the paper's sections, equations and algorithms are from memory.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from headwise.authoring import Averaging, Central, Local, OwnModel, Params, Positive, Shared, Unit, Update


@dataclass(frozen=True)
class FML(Averaging[OwnModel]):
    """A private and a shared model learn from each other's predictions; only the shared one travels."""

    family = "mutual distillation"
    travels = "second model"
    stays = "whole model"
    cost = 2
    heterogeneous = "any"

    weights: Literal["samples", "clients"] = "clients"
    """how clients count in the server's mean: by their samples, or (Algorithm 1) equally"""
    alpha: Unit = 0.5
    """weight of the labels for the own model; 1: it learns nothing from the shared one, as in local training"""
    beta: Unit = 0.5
    """weight of the labels for the shared model; 1: it learns nothing from the own one, as in FedAvg"""
    clip: Positive = 10.0
    """largest norm of the gradient of both models together"""

    def shared(self, central: Central) -> Params:
        return central.init(common=True).params()

    def client_init(self, local: Local) -> OwnModel:
        return OwnModel(local.model(local.random_head("fml")).state())

    def local_update(self, me: OwnModel, down: Shared, local: Local) -> Update[Shared, OwnModel]:
        own, meme = local.model(me.w), local.model(down.w, common=True)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            """Algorithm 1: both losses; each trains only its own model, so one step updates both."""
            z, z_meme = own(x), meme(x)
            mine = self.alpha * local.loss_of(z, y) + (1 - self.alpha) * local.divergence(z_meme.detach(), z)
            shared = self.beta * local.loss_of(z_meme, y) + (1 - self.beta) * local.divergence(z.detach(), z_meme)
            return mine + shared

        local.sgd(own, meme, loss=loss, clip=self.clip)
        return Update(Shared(meme.params()), OwnModel(own.state()), own, keep=meme)
