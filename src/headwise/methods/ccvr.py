"""CCVR — Luo et al., *No Fear of Heterogeneity: Classifier Calibration for Federated Learning with Non-IID Data*,
NeurIPS 2021. https://arxiv.org/abs/2106.05001

    paper          here        meaning
    mu_c, Sigma_c  _gaussians  mean and covariance of the features of class c, over all clients
    M_c            samples     virtual features per class
    psi            head        classifier, retrained on the virtual features

    (1)  mu_c = sum_k n_kc mu_kc / n_c
    (2)  Sigma_c = (sum_k n_kc E_kc[f f^T] - n_c mu_c mu_c^T) / (n_c - 1), the covariance of all clients' features;
         negative eigenvalues, which rounding or noise can leave, count as 0
    (3)  the classifier is trained on draws from N(mu_c, Sigma_c), with the extractor frozen

From its abstract and FL-bench's files (https://github.com/KarhouTam/FL-bench, `server/ccvr.py` and `client/ccvr.py`);
the numbers are ours. FL-bench divides a client's covariance by n_kc, but joins them as if by n_kc - 1.

Departs from it: the paper calibrates once, after the last round. Here clients send statistics of the model they were
sent, so that every round calibrates the model of the round before, exactly; that is the model that clients use.
Training goes on from the model that is not calibrated. Statistics are those of the round's clients. A class needs two
samples. Sums are sent divided by the client's samples, so that the server needs only their mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from headwise.authoring import (
    Central, Count, Local, Method, Natural, Nothing, Params, Positive, Predictor, Record, Reply, SplitModel, Update,
    descend, mean, shuffle,
)  # fmt: skip

Eigen = tuple[Tensor, Tensor]


class Models(Record):
    """The model in training, and that of the round before with its calibrated head."""

    w: Params
    calibrated: Params


class Up(Record):
    """A client's model; of the one it was sent: each class's samples, sums of features and of products, over n."""

    w: Params
    counts: Tensor
    sums: Tensor
    products: Tensor


@dataclass(frozen=True)
class CCVR(Method[Models, Nothing, Models, Up]):
    """FedAvg whose head is retrained on virtual features, drawn from a Gaussian per class over all clients."""

    family = "one global model"
    tasks = ("classification",)
    travels = "whole model, feature statistics"
    stays = "nothing"
    traffic_down = "2 * P"
    traffic_up = "P + C * (1 + K + K * K)"
    sums = "samples"
    cost = 1.4

    samples: Natural = 100
    """virtual features per class; 0 is FedAvg, one round behind"""
    head_lr: Positive = 0.1
    """learning rate of the calibration"""
    head_epochs: Count = 1
    """epochs of the calibration"""
    batch: Count = 32
    """virtual features per step"""

    def server_init(self, central: Central) -> Models:
        w = central.init().params()
        return Models(w, w)

    def aggregate(self, server: Models, replies: Sequence[Reply[Up]], central: Central) -> Models:
        if not replies:
            return server
        head = self._calibrate(server.w.select("head."), replies, central)
        w = mean((r.up.w for r in replies), [r.n for r in replies])
        return Models(w, server.w.select("body.") | head)

    def global_model(self, server: Models, central: Central) -> SplitModel | None:
        return central.model(server.calibrated)

    def local_update(self, me: Nothing, down: Models, local: Local) -> Update[Up, Nothing]:
        m = local.model(down.w)
        f, y = next(local.batches(1, through=m.body, size=local.n))
        classes = [f[y == c] for c in range(local.classes)]
        sums = torch.stack([of.sum(0) for of in classes]) / local.n
        products = torch.stack([of.T @ of for of in classes]) / local.n
        local.sgd(m)
        return Update(Up(m.params(), local.class_counts.type_as(f) / local.n, sums, products), me, m)

    def personalize(self, me: Nothing, down: Models, local: Local) -> Predictor:
        return local.model(down.calibrated)

    def _calibrate(self, head: Params, replies: Sequence[Reply[Up]], central: Central) -> Params:
        """Eq. (3)."""
        m = central.init()
        drawn = list[Tensor]()
        labels = list[Tensor]()
        for c, mu, root in _gaussians(replies):
            noise = torch.randn(self.samples, len(mu), generator=central.rng).type_as(mu)
            drawn.append(mu + noise @ root.T)
            labels.append(torch.full((self.samples,), c))
        if not drawn or not self.samples:
            return head
        f = torch.cat(drawn).float()
        y = torch.cat(labels)

        def loss(h: Params, i: Tensor) -> Tensor:
            return cross_entropy(m.head_given(h)(f[i]), y[i])

        for _ in range(self.head_epochs):
            head = descend(head, loss, shuffle(len(y), self.batch, central.rng), self.head_lr)
        return head


def _gaussians(replies: Sequence[Reply[Up]]) -> list[tuple[int, Tensor, Tensor]]:
    """Of each class with two samples or more: its label, Eq. (1), and a root of Eq. (2)."""
    n = [r.n for r in replies]
    of = [Params(counts=r.up.counts, sums=r.up.sums, products=r.up.products).map(Tensor.double) for r in replies]
    total = sum(n) * mean(of, n)
    made = list[tuple[int, Tensor, Tensor]]()
    for c in map(int, (total["counts"] > 1.5).nonzero()):
        count = total["counts"][c]
        mu = total["sums"][c] / count
        sigma = (total["products"][c] - count * torch.outer(mu, mu)) / (count - 1)
        values, vectors = cast(Eigen, torch.linalg.eigh(sigma))  # pyright: ignore[reportUnknownMemberType]
        made.append((c, mu, vectors * values.clamp(min=0).sqrt()))
    return made
