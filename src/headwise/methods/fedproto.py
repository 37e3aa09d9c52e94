"""FedProto — Tan et al., *FedProto: Federated Prototype Learning across Heterogeneous Clients*, AAAI 2022.
https://arxiv.org/abs/2105.00243

    paper       here          meaning
    omega_i     me.w          client i's model, with a body of its own; it never leaves the client
    C_i^(j)     up.means      prototype: mean feature of client i's samples of class j
    C-^(j)      down.means    global prototype of class j
    |D_i,j|     up.counts     samples of class j at client i
    lambda      lam           weight of staying near the global prototypes

Departs from the paper: Eq. (6) prints an extra division by the number of clients that hold the class; we take a mean.
As in the authors' code, Eq. (8) pulls each sample's feature (by the mean squared difference), not the class mean. A
class that no client sends in a round keeps its prototype. Clients predict with their heads, which the authors' code
reports as well; Eq. (4), the nearest prototype, is `evaluate = "prototype"`.

Read: its abstract, its authors' code (https://github.com/yuetan031/fedproto) and the files of PFLlib, HtFLlib and
FL-bench. Numbers of the paper's sections, equations and algorithms are from memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from headwise.authoring import (
    Central, ClassMeans, Composed, Local, Method, NonNegative, OwnModel, Predictor, Record, Reply, SplitModel, Update,
)  # fmt: skip


class Prototypes(ClassMeans):
    """A mean feature for each class that a client holds; the label is -1 where there is none yet."""

    counts: Tensor | None
    """[c] int32, if sent"""


class Known(Record):
    """The global prototypes [C, K], and whether a class has one [C]."""

    known: Tensor
    means: Tensor


@dataclass(frozen=True)
class FedProto(Method[Known, OwnModel, Prototypes, Prototypes]):
    """Every client trains its own model, with features pulled towards the class means over all clients."""

    family = "prototypes"
    tasks = ("classification",)
    travels = "class means"
    stays = "whole model"
    traffic_down = "c * (K + 1)"
    traffic_up = "c * (K + 2) if weights == 'samples' else c * (K + 1)"
    sums = "labels"
    cost = 1.4
    heterogeneous = "same head"

    lam: NonNegative = 1.0
    """weight of staying near the global prototypes; 0 is local training"""
    evaluate: Literal["head", "prototype"] = "head"
    """how a client predicts: with its head, or by the nearest global prototype of its own classes"""
    weights: Literal["samples", "equal"] = "samples"
    """weights of the clients' prototypes in the class mean: by samples of the class, or (code) equal"""

    def server_init(self, central: Central) -> Known:
        return Known(torch.zeros(central.classes) > 0, torch.zeros(central.classes, central.init().width))

    def broadcast(self, server: Known, client: int, central: Central) -> Prototypes:
        labels = torch.tensor(central.labels(client))
        return Prototypes(torch.where(server.known[labels], labels, -1).int(), server.means[labels], None)

    def aggregate(self, server: Known, replies: Sequence[Reply[Prototypes]], central: Central) -> Known:
        total = torch.zeros_like(server.means)
        count = total.new_zeros(len(total))
        for r in replies:
            n = count.new_ones(len(r.up.labels)) if r.up.counts is None else r.up.counts.type_as(count)
            total.index_add_(0, r.up.labels, r.up.means * n[:, None])
            count.index_add_(0, r.up.labels, n)
        means = total / count.clamp(min=1)[:, None]  # Eq. (6)
        return Known(server.known | (count > 0), torch.where(count[:, None] > 0, means, server.means))

    def local_update(self, me: OwnModel, down: Prototypes, local: Local) -> Update[Prototypes, OwnModel]:
        m = local.model(me.w)
        labels, means = _select_given(down)
        target = means.new_zeros(local.classes, m.width).index_copy(0, labels, means)
        pull = means.new_zeros(local.classes).index_fill(0, labels, self.lam)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            f = m.body(x)
            return local.loss_of(m.head(f), y) + (pull[y] * (f - target[y]).square().mean(1)).mean()  # Eqs. (7), (8)

        local.sgd(m, loss=loss)
        own = local.class_means(m.body)  # Eq. (3)
        counts = local.class_counts[own.labels].int() if self.weights == "samples" else None
        up = Prototypes(own.labels, own.means, counts)
        return Update(up, OwnModel(m.state()), self._predictor(m, down, local), keep=m)

    def personalize(self, me: OwnModel, down: Prototypes, local: Local) -> Predictor:
        return self._predictor(local.model(me.w), down, local)

    def _predictor(self, m: SplitModel, down: Prototypes, local: Local) -> Predictor:
        """The head, or Eq. (4) once there are prototypes: negative distances; classes without one are farthest."""
        labels, means = _select_given(down)
        if self.evaluate == "head" or not len(labels):
            return m

        def nearest(x: Tensor, m: SplitModel, labels: Tensor, means: Tensor) -> Tensor:
            d = (m.body(x)[:, None] - means).norm(dim=2)  # `cdist` can't be exported
            farthest = (d.amax(1, keepdim=True) + 1).repeat(1, local.classes)
            return -farthest.index_copy(1, labels, d)

        return Composed(nearest, m=m, labels=labels, means=means)


def _select_given(down: Prototypes) -> tuple[Tensor, Tensor]:
    given = down.labels >= 0
    return down.labels[given].long(), down.means[given]
