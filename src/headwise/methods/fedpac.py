"""FedPAC — Xu, Tong and Huang, *Personalized Federated Learning with Feature Alignment and Classifier Collaboration*,
ICLR 2023. https://arxiv.org/abs/2306.11867

    paper      here          meaning
    theta      down.w        the shared feature extractor
    phi_i      down.h        client i's classifier: a mixture of the classifiers of its last round's clients
    c_k        down.means    global centroid of class k
    lambda     lam           weight of the distance to the centroids
    V_i        up.v          variance of client i's statistics, divided by its samples
    h_i        up.mixed      [C, K]: mean feature of each class, times the class's share of client i's samples
    alpha_ij   weights       how much client i's classifier takes of client j's

    (1)  V_i = 1/n_i (sum_k p_k E|f|^2 - sum_k p_k^2 |E f|^2), means over its samples of class k, p_k their share
    (2)  min over the simplex of sum_j alpha_j^2 V_j + |h_i - sum_j alpha_j h_j|^2
    (3)  loss of the extractor: l + lambda mean |f - c_y|^2 / K

As its authors' code (https://github.com/JianXu95/FedPAC, `methods/fedpac.py`, `tools.py`); the numbers are ours. (1)
is taken under the downloaded model, before training. The classifier is trained first, then the extractor.

Departs from it: (2) is solved by accelerated projected gradients instead of cvxpy. A class without a centroid does not
pull; in the code, the client's own mean does. A client's classifier is sent with the next download, not at once. The
code trains the classifier at a rate of 0.1, the extractor at 0.01; here both have the run's (`fedpac@code`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from headwise.authoring import (
    Central, EpochsOrNone, Local, Method, NonNegative, Nothing, Params, Predictor, Record, Reply, SplitModel, Update,
    mean, merge_by_client, project_to_simplex,
)  # fmt: skip

SMALL = 1e-3  # a weight below counts as zero, as in the authors' code
ITERATIONS = 500


class Server(Record):
    """The shared body, everybody's mixed head, the centroids [C, K], and whether a class has one [C]."""

    w: Params
    heads: dict[int, Params]
    known: Tensor
    means: Tensor


class Down(Record):
    """The body, the client's mixed head, and the centroids."""

    w: Params
    h: Params
    known: Tensor
    means: Tensor


class Up(Record):
    """A client's model, the statistics that weight its head, and its class means with their samples, 0 if none."""

    w: Params
    h: Params
    v: float
    mixed: Tensor
    means: Tensor
    counts: Tensor


@dataclass(frozen=True)
class FedPAC(Method[Server, Nothing, Down, Up]):
    """A shared body kept near global class means; each client's head is the mixture of heads that suits it best."""

    family = "aggregated head"
    tasks = ("classification",)
    travels = "whole model, class means"
    stays = "nothing"
    traffic_down = "P + C * K + C / 4"  # a boolean takes one byte
    traffic_up = "P + 2 * C * K + C + 1"
    cost = 1.7
    shows = {"server.means": "class feature"}
    presets = {"code": {"head_lr": 0.1}}

    lam: NonNegative = 1.0
    """weight of the distance between features and the centroid of their class"""
    head_epochs: EpochsOrNone = 1
    """epochs on the head, with the body frozen, before the body's `train.epochs`"""
    head_lr: NonNegative | Literal["local"] = "local"
    """learning rate of the head; local: the body's"""

    def server_init(self, central: Central) -> Server:
        m = central.init()
        return Server(m.params("body"), {}, torch.zeros(central.classes) > 0, torch.zeros(central.classes, m.width))

    def broadcast(self, server: Server, client: int, central: Central) -> Down:
        return Down(server.w, server.heads.get(client) or central.init().params("head"), server.known, server.means)

    def aggregate(self, server: Server, replies: Sequence[Reply[Up]], central: Central) -> Server:
        if not replies:
            return server
        counts = torch.stack([r.up.counts for r in replies])
        total = counts.sum(0)
        means = (torch.stack([r.up.means for r in replies]) * counts[..., None]).sum(0) / total.clamp(min=1)[:, None]
        mixtures = zip(replies, _weights([r.up for r in replies]), strict=True)
        heads = {r.client: mean((s.up.h for s in replies), alpha) for r, alpha in mixtures}
        w = mean((r.up.w for r in replies), [r.n for r in replies])
        means = torch.where(total[:, None] > 0, means, server.means)
        return Server(w, merge_by_client(server.heads, heads), server.known | (total > 0), means)

    def local_update(self, me: Nothing, down: Down, local: Local) -> Update[Up, Nothing]:
        m = local.model(down.w | down.h)
        v, mixed = _statistics(m, local)

        def loss(x: Tensor, y: Tensor) -> Tensor:  # Eq. (3)
            f = m.body(x)
            apart = (f - down.means[y]).square().mean(1) * down.known[y]
            return local.loss_of(m.head(f), y) + self.lam * apart.mean()

        rate = local.lr if self.head_lr == "local" else self.head_lr
        local.sgd(m, only=m.head, epochs=self.head_epochs, lr=rate)
        local.sgd(m, only=m.body, loss=loss)
        means = local.class_means(m.body).table(local.classes)
        up = Up(m.params("body"), m.params("head"), v, mixed, means, local.class_counts.type_as(means))
        return Update(up, me, m)

    def personalize(self, me: Nothing, down: Down, local: Local) -> Predictor:
        return local.model(down.w | down.h)


def _statistics(m: SplitModel, local: Local) -> tuple[float, Tensor]:
    """Eq. (1), and h_i."""
    share = (local.class_counts / local.n)[:, None]
    mixed = local.class_means(m.body).table(local.classes) * share
    second = local.features(m.body).double().square().sum(1).mean()  # sum_k p_k E|f|^2 is the mean over all samples
    return float(second - mixed.double().square().sum()) / local.n, mixed


def _weights(ups: Sequence[Up]) -> list[Iterable[float]]:
    """Eq. (2) for each client."""
    h = torch.stack([up.mixed.flatten() for up in ups]).double()
    apart = h[:, None] - h  # [i, j]: h_i - h_j, whose weighted sum is h_i - sum_j alpha_j h_j
    Q = apart @ apart.mT + torch.diag(torch.tensor([up.v for up in ups], dtype=torch.float64))
    alpha = _minimize(Q)
    kept = torch.where(alpha > SMALL, alpha, 0)
    return [map(float, row) for row in kept / kept.sum(1, keepdim=True)]


def _minimize(Q: Tensor) -> Tensor:
    """For each matrix of a stack, the x of the simplex with the smallest x^T Q x; by FISTA with restarts."""
    x = y = torch.full(Q.shape[:2], 1 / Q.shape[1], dtype=Q.dtype)
    size = Q.square().sum((1, 2)).sqrt()[:, None].clamp(min=1e-300)
    k = torch.zeros(len(Q), 1, dtype=Q.dtype)
    for _ in range(ITERATIONS):
        new = project_to_simplex(y - (Q @ y[..., None])[..., 0] / size)
        overshot = ((y - new) * (new - x)).sum(1, keepdim=True) > 0
        k = torch.where(overshot, 0, k + 1)
        y = new + k / (k + 3) * (new - x)
        x = new
    return x
