"""ClusterFL — Ouyang et al., *ClusterFL: A Similarity-Aware Federated Learning System for Human Activity Recognition*,
MobiSys 2021. Its longer version in ACM TOSN: https://doi.org/10.1145/3554980

    paper    here          meaning
    w_i      me.w          client i's model; the server keeps everybody's last one
    F        cluster       which cluster a client is in
    Omega    down.w        the mean model of its cluster
    alpha    decay         2 (alpha - beta): all models are pulled to zero
    beta     pull          2 beta: models are pulled to the mean of their cluster

Kept from the paper: its objective (1), clustered multi-task learning, which equals (2) if F holds normalized cluster
indicators. Clients and server take turns: clients lower it in their w_i, the server chooses F again.

    (1)  sum_i l_i(w_i) + alpha tr(W W^T) - beta tr(F^T W W^T F)
    (2)  sum_i l_i(w_i) + (alpha - beta) ||w_i||^2 + beta ||w_i - mean of i's cluster||^2

Departs from the paper: there are no ADMM copies of the means with multipliers, F is not relaxed, and no slow or unlike
clients are dropped. F comes from k-means on the rows of the relation matrix, the cosines between the models'
differences from the mean model, which need not lower (1); the authors' code compares outputs on samples that its server
owns, and ours has none. A client that has not trained yet is sent the mean of all models. The authors' code has
pull = 0.001; ours is 0.1, so that it has an effect within a few epochs.

Read: its abstract and its authors' code (https://github.com/xmouyang/ClusterFL, `server_cfmtl.py`, `client_cfmtl.py`).
The numbers are ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from headwise.authoring import (
    Central, Count, Local, Method, NonNegative, OwnModel, Params, Record, Reply, Shared, Update, mean, merge_by_client,
)  # fmt: skip

ITERATIONS = 100  # k-means converges long before


class Clusters(Record):
    """The last model of every client that has trained, and the cluster of each of them."""

    models: dict[int, Params]
    cluster: Tensor
    """int64, one per entry of `models`, in the same order"""


@dataclass(frozen=True)
class ClusterFL(Method[Clusters, OwnModel, Shared, Shared]):
    """Every client trains its own model, pulled to the mean of its cluster of similar models."""

    family = "clusters"
    travels = "whole model"
    stays = "whole model (a copy is sent)"
    uploaded_fields = ("w",)
    traffic_down = "P"
    traffic_up = "P"

    clusters: Count = 3
    """number of clusters; fewer until that many clients have trained"""
    pull: NonNegative = 0.1
    """2 beta: weight of the pull to the cluster's mean; 0, without decay, is local training"""
    decay: NonNegative = 0.001
    """2 (alpha - beta): weight decay"""

    def server_init(self, central: Central) -> Clusters:
        return Clusters({}, torch.zeros(0, dtype=torch.int64))

    def broadcast(self, server: Clusters, client: int, central: Central) -> Shared:
        if not server.models:
            return Shared(central.init().params())
        of = dict(zip(server.models, map(int, server.cluster), strict=True))
        return Shared(mean(w for j, w in server.models.items() if client not in of or of[j] == of[client]))

    def aggregate(self, server: Clusters, replies: Sequence[Reply[Shared]], central: Central) -> Clusters:
        models = merge_by_client(server.models, {r.client: r.up.w for r in replies})
        return Clusters(models, _k_means(_relation(models, central), self.clusters)) if models else server

    def local_update(self, me: OwnModel, down: Shared, local: Local) -> Update[Shared, OwnModel]:
        m = local.model(me.w)
        centre = down.w.restrict(m.live())
        both = self.pull + self.decay  # pull (w - c) + decay w = both (w - c) + decay c
        local.sgd(m, pull=(both, centre), shift=self.decay * centre)  # Eq. (2), as numbered above
        return Update(Shared(m.params()), OwnModel(m.state()), m)


def _relation(models: Mapping[int, Params], central: Central) -> Tensor:
    """[n, n]: cosines between the models' differences from their mean."""
    names = central.init().live()
    W = torch.stack([w.restrict(names).flatten() for w in models.values()])
    directions = normalize(W - W.mean(0), dim=1)
    return directions @ directions.T


def _k_means(rows: Tensor, k: int) -> Tensor:
    """The cluster of each row; centres start at the first row, then at the row farthest from all chosen so far."""
    chosen = [0]
    while len(chosen) < min(k, len(rows)):
        chosen.append(int(torch.cdist(rows, rows[chosen]).min(1).values.argmax()))
    centres = rows[chosen]
    cluster = torch.full((len(rows),), -1)
    for _ in range(ITERATIONS):
        before = cluster
        cluster = torch.cdist(rows, centres).argmin(1)
        if torch.equal(before, cluster):
            break
        kept = [rows[cluster == c].mean(0) if (cluster == c).any() else centres[c] for c in range(len(centres))]
        centres = torch.stack(kept)
    return cluster
