"""FedGH — Yi et al., *FedGH: Heterogeneous Federated Learning with Generalized Global Header*, ACM MM 2023.
https://arxiv.org/abs/2303.13137

    paper     here            meaning
    theta     down.w          the global header: a head trained on the server
    phi_k     me.phi          client k's own feature extractor, of any architecture with the same width
    R_k^s     up.means        local averaged representation (LAR) of class s
    eta_theta header_lr       learning rate of the header

The public code steps the optimizer of another network, so its header never changes; `header_lr = 0` reproduces that.

Read: the paper, its authors' code (https://github.com/LipingYi/FedGH), PFLlib's and HtFLlib's files.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from headwise.authoring import (
    Central, ClassMeans, Count, Epochs, Local, Method, NonNegative, OwnBody, Params, Reply, Shared, Update, descend,
    shuffle,
)  # fmt: skip


@dataclass(frozen=True)
class FedGH(Method[Shared, OwnBody, Shared, ClassMeans]):
    """One head for all, trained on the server from the mean features of each client's classes; bodies stay private."""

    family = "server-trained head"
    tasks = ("classification",)
    travels = "head down, class means up"
    stays = "body"
    traffic_down = "L"
    traffic_up = "c * (K + 1)"
    cost = 1.4
    heterogeneous = "same head"

    header_lr: NonNegative = 0.01
    """learning rate of the global header; 0 keeps it as initialized"""
    header_epochs: Epochs = 1
    """passes over the round's class means"""
    header_step: Literal["per_client", "per_proto", "pooled"] = "per_client"
    """take a step on each client's class means, on each single class mean, or on shuffled batches of all of them"""
    pooled_batch: Count = 10
    """class means per step when pooled"""

    def server_init(self, central: Central) -> Shared:
        return Shared(central.init().params("head"))

    def local_update(self, me: OwnBody, down: Shared, local: Local) -> Update[ClassMeans, OwnBody]:
        m = local.model(me.phi | down.w)  # Algorithm 1: the local header is replaced by the global one
        trained = local.sgd(m) > 0  # False if `drop_last` leaves no batch
        return Update(local.class_means(m.body).where(trained), OwnBody(m.state("body")), m)  # Eq. (3)

    def aggregate(self, server: Shared, replies: Sequence[Reply[ClassMeans]], central: Central) -> Shared:
        m = central.init()
        theta = server.w

        def loss(h: Params, batch: tuple[Tensor, Tensor]) -> Tensor:
            means, labels = batch
            return cross_entropy(m.head_given(h)(means), labels.long())

        for _ in range(self.header_epochs):
            theta = descend(theta, loss, self._steps(replies, central), self.header_lr)  # Eq. (4)
        return Shared(theta)

    def _steps(self, replies: Sequence[Reply[ClassMeans]], central: Central) -> Iterator[tuple[Tensor, Tensor]]:
        """The class means for each step, in client order unless pooled."""
        if self.header_step == "per_client":
            yield from ((r.up.means, r.up.labels) for r in replies if len(r.up.labels))
            return
        if not replies:
            return
        means = torch.cat([r.up.means for r in replies])
        labels = torch.cat([r.up.labels for r in replies])
        if self.header_step == "per_proto":
            yield from ((means[[i]], labels[[i]]) for i in range(len(labels)))
            return
        for i in shuffle(len(labels), self.pooled_batch, central.rng):
            yield means[i], labels[i]
