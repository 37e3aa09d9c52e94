"""FedGH — Yi et al., *FedGH: Heterogeneous Federated Learning with Generalized Global Header*, ACM MM 2023.
https://arxiv.org/abs/2303.13137

    paper     here            meaning
    theta     down.w          the global header: a head trained on the server
    phi_k     me.phi          client k's own feature extractor, of any architecture with the same width
    R_k^s     up.means        local averaged representation (LAR) of class s
    eta_theta header_lr       learning rate of the header

The public code steps the optimiser of another network, so its header never changes; `header_lr = 0` reproduces that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from headwise.authoring import (
    Central, ClassMeans, Count, Epochs, Local, Method, NonNegative, Params, Predictor, Record, Reply, Shared, TaskName,
    Update, gradient, step,
)  # fmt: skip


class Body(Record):
    """A client's own body."""

    phi: Params


@dataclass(frozen=True)
class FedGH(Method[Shared, Body, Shared, ClassMeans]):
    """One head for all, trained on the server from the mean features of each client's classes; bodies stay private."""

    family: ClassVar[str] = "server-trained head"
    tasks: ClassVar[tuple[TaskName, ...]] = ("classification",)
    travels: ClassVar[str] = "head down, class means up"
    stays: ClassVar[str] = "body"
    traffic_down: ClassVar[str] = "L"
    traffic_up: ClassVar[str] = "c * (K + 1)"
    cost: ClassVar[float] = 1.4
    heterogeneous: ClassVar[Literal["no", "same head", "any"]] = "same head"

    header_lr: NonNegative = 0.01
    """learning rate of the global header; 0 keeps it as initialised"""
    header_epochs: Epochs = 1
    """passes over the round's class means"""
    header_step: Literal["per_client", "per_proto", "pooled"] = "per_client"
    """take a step on each client's class means, on each single class mean, or on shuffled batches of all of them"""
    pooled_batch: Count = 10
    """class means per step when pooled"""

    def server_init(self, central: Central) -> Shared:
        return Shared(central.init().params("head"))

    def broadcast(self, server: Shared, client: int, central: Central) -> Shared:
        return server

    def client_init(self, local: Local) -> Body:
        return Body(local.init().state("body"))

    def local_update(self, me: Body, down: Shared, local: Local) -> Update[ClassMeans, Body]:
        m = local.model(me.phi | down.w)  # Algorithm 1: the local header is replaced by the global one
        trained = local.sgd(m) > 0  # False if `drop_last` leaves no batch
        return Update(local.class_means(m.body).where(trained), Body(m.state("body")), m)  # Eq. (3)

    def aggregate(self, server: Shared, replies: Sequence[Reply[ClassMeans]], central: Central) -> Shared:
        m, theta = central.init(), server.w
        for _ in range(self.header_epochs):
            for means, labels in self._steps(replies, central):
                slope = gradient(lambda h, f=means, s=labels: cross_entropy(m.head_given(h)(f), s.long()), theta)
                theta = step(theta, slope, self.header_lr)  # Eq. (4)
        return Shared(theta)

    def personalize(self, me: Body, down: Shared, local: Local) -> Predictor:
        return local.model(me.phi | down.w)

    def _steps(self, replies: Sequence[Reply[ClassMeans]], central: Central) -> Iterator[tuple[Tensor, Tensor]]:
        """The class means for each step, in client order unless pooled."""
        if self.header_step == "per_client":
            yield from ((r.up.means, r.up.labels) for r in replies if len(r.up.labels))
            return
        if not replies:
            return
        means, labels = torch.cat([r.up.means for r in replies]), torch.cat([r.up.labels for r in replies])
        if self.header_step == "per_proto":
            yield from ((means[[i]], labels[[i]]) for i in range(len(labels)))
            return
        for i in torch.split(torch.randperm(len(labels), generator=central.rng), self.pooled_batch):
            yield means[i], labels[i]
