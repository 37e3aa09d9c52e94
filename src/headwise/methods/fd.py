"""FD — Jeong et al., *Communication-Efficient On-Device Machine Learning: Federated Distillation and Augmentation under
Non-IID Private Data*, 2018. https://arxiv.org/abs/1811.11479

    paper      here          meaning
    w_k        me.w          client k's model, of any architecture; it never leaves the client
    F-_k,l     up.means      mean logits of client k's samples of label l, gathered in training
    F^_k,l     down.means    mean of the F-_j,l of all other clients j
    lambda     lam           weight of distillation

Departs from the paper: no samples are generated (FAug). Raw logits are averaged, then a softmax turns them
into targets; without it, as in some public code, training diverges. A client's last message counts until its next.

Read: its abstract, PFLlib's and HtFLlib's files; its authors' code was not found. Numbers of the paper's sections,
equations and algorithms are from memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, pad

from headwise.authoring import Central, ClassMeans, Local, Method, NonNegative, OwnModel, Record, Reply, Update


class Logits(ClassMeans):
    """Mean logits [c, C] by label, for the labels that a client holds; the label is -1 where there are none."""


class Everyone(Record):
    """The last mean logits from each client."""

    known: Tensor
    """[N, C] whether there are any, by client and label"""
    means: Tensor
    """[N, C, C]"""


@dataclass(frozen=True)
class FD(Method[Everyone, OwnModel, Logits, Logits]):
    """Every client trains its own model, which also imitates the others' average prediction for each label."""

    family = "distillation by class"
    tasks = ("classification",)
    travels = "mean logits of each class"
    stays = "whole model"
    traffic_down = "c * (C + 1)"
    traffic_up = "c * (C + 1)"
    cost = 1.1
    heterogeneous = "any"

    lam: NonNegative = 1.0
    """weight of distillation; 0 is local training"""

    def server_init(self, central: Central) -> Everyone:
        means = torch.zeros(central.N, central.classes, central.classes)
        return Everyone(means[..., 0] > 0, means)

    def broadcast(self, server: Everyone, client: int, central: Central) -> Logits:
        labels = torch.tensor(central.labels(client))
        others = server.known[:, labels]
        others[client : client + 1] = False  # nothing, if it joined later
        count = others.sum(0)
        total = (server.means[:, labels] * others[..., None]).sum(0)
        means = total / count.clamp(min=1)[:, None]  # Algorithm 1: the mean over the other clients
        return Logits(torch.where(count > 0, labels, -1).int(), means)

    def aggregate(self, server: Everyone, replies: Sequence[Reply[Logits]], central: Central) -> Everyone:
        known, means = (pad(t, [0, 0] * (t.dim() - 1) + [0, central.N - len(t)]) for t in (server.known, server.means))
        for r in replies:
            sent = r.up.labels >= 0
            labels = r.up.labels[sent].long()
            known[r.client, labels] = True
            means[r.client, labels] = r.up.means[sent]
        return Everyone(known, means)

    def local_update(self, me: OwnModel, down: Logits, local: Local) -> Update[Logits, OwnModel]:
        m = local.model(me.w)
        targets = down.means.new_zeros(local.classes, local.classes)
        total = torch.zeros_like(targets)
        count = total.new_zeros(local.classes)
        given = down.labels >= 0
        targets[down.labels[given].long()] = down.means[given].softmax(1)  # zeros elsewhere: no loss

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = m(x)
            total.index_add_(0, y, z.detach())
            count.index_add_(0, y, torch.ones_like(y, dtype=count.dtype))
            taught = -(targets[y] * log_softmax(z, 1)).sum(1)
            return local.loss_of(z, y) + self.lam * taught.mean()  # Algorithm 1

        local.sgd(m, loss=loss)
        labels = local.class_counts.nonzero().flatten()
        means = total[labels] / count[labels].clamp(min=1)[:, None]
        return Update(Logits(torch.where(count[labels] > 0, labels, -1).int(), means), OwnModel(m.state()), m)
