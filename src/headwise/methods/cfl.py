"""CFL — Sattler, Müller and Samek, *Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization
under Privacy Constraints*, 2019. https://arxiv.org/abs/1910.01991

    paper       here          meaning
    theta_c     down.w        the model of client i's cluster
    dtheta_i    changes[i]    client i's last change of it
    eps_1       eps_mean      a cluster may split once the norm of its clients' mean change is below ...
    eps_2       eps_max       ... and the largest norm of one of these changes is above

    (1)  split if |mean of the dtheta_i| < eps_1 and max |dtheta_i| > eps_2, over the cluster's clients
    (2)  into the two groups that complete linkage of the cosines between the dtheta_i ends with

As its authors' code (https://github.com/felisat/clustered-federated-learning, `fl_devices.py` and its notebook); the
numbers are ours. A cluster splits before its clients' changes, which count the same, are added to its model.

Departs from it, as there all clients take part: norms are those of the round's clients; cosines, of the last changes of
all members; a member that has not trained yet joins the larger group, as a new client does. The notebook has
eps_1 = 0.4 and eps_2 = 1.6 for its network and splits after 20 rounds at the earliest (`cfl@code`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from headwise.authoring import (
    Central, Local, Method, Natural, NonNegative, Nothing, Params, Record, Reply, Shared, Update, mean, merge_by_client,
)  # fmt: skip


class Clusters(Record):
    """The model of each cluster, the last change of every client that has trained, and everybody's cluster [N]."""

    models: dict[int, Params]
    changes: dict[int, Params]
    cluster: Tensor


class Change(Record):
    """How far a client's training moved its cluster's model."""

    d: Params


@dataclass(frozen=True)
class CFL(Method[Clusters, Nothing, Shared, Change]):
    """One model for all, and for each of two groups once their changes point apart, and so on."""

    family = "clusters"
    travels = "whole model"
    stays = "nothing"
    traffic_down = "P"
    traffic_up = "P"
    shows = {"server.cluster": "client"}
    presets = {"code": {"eps_mean": 0.4, "eps_max": 1.6, "begin": 20}}

    eps_mean: NonNegative = 0.4
    """a cluster may split once the norm of its clients' mean change is below; 0 is FedAvg with equal weights"""
    eps_max: NonNegative = 0.4
    """it splits only if one of these changes is longer"""
    begin: Natural = 0
    """no cluster splits in the first so many rounds"""

    def server_init(self, central: Central) -> Clusters:
        return Clusters({0: central.init().params()}, {}, torch.zeros(central.N, dtype=torch.int64))

    def broadcast(self, server: Clusters, client: int, central: Central) -> Shared:
        known = client < len(server.cluster)
        largest = int(server.cluster.bincount().argmax())
        return Shared(server.models[int(server.cluster[client]) if known else largest])

    def aggregate(self, server: Clusters, replies: Sequence[Reply[Change]], central: Central) -> Clusters:
        changes = merge_by_client(server.changes, {r.client: r.up.d for r in replies})
        models = dict(server.models)
        largest = int(server.cluster.bincount().argmax())
        cluster = torch.cat([server.cluster, server.cluster.new_full((central.N - len(server.cluster),), largest)])
        for c, w in server.models.items():
            members = [i for i in changes if cluster[i] == c]
            sent = [r.up.d for r in replies if cluster[r.client] == c]
            if len(members) > 2 and central.t > self.begin and self._disagree(sent, central):
                leaving = _find_smaller_group({i: changes[i] for i in members}, central)
                models[max(models) + 1] = w
                cluster[leaving] = max(models)
        for c in models:
            if sent := [r.up.d for r in replies if cluster[r.client] == c]:
                models[c] = models[c] + mean(sent)
        return Clusters(models, changes, cluster)

    def _disagree(self, sent: Sequence[Params], central: Central) -> bool:
        """Eq. (1)."""
        if not sent:
            return False
        trained = [d.restrict(central.init().live()) for d in sent]
        longest = max(float(d.sq_norm().sqrt()) for d in trained)
        return float(mean(trained).sq_norm().sqrt()) < self.eps_mean and longest > self.eps_max

    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Change, Nothing]:
        m = local.model(down.w)
        local.sgd(m)
        return Update(Change(m.params() - down.w), me, m)


def _find_smaller_group(changes: Mapping[int, Params], central: Central) -> list[int]:
    """Eq. (2): groups merge, those first whose least similar members are the most similar, until two are left."""
    names = central.init().live()
    rows = torch.stack([d.restrict(names).flatten() for d in changes.values()])
    directions = normalize(rows.double(), dim=1)
    similarity = directions @ directions.T
    groups = [[i] for i in range(len(rows))]
    while len(groups) > 2:
        pairs = [(a, b) for a in range(len(groups)) for b in range(a)]
        a, b = max(pairs, key=lambda p: float(similarity[groups[p[0]]][:, groups[p[1]]].min()))
        groups[b] += groups.pop(a)
    return [list(changes)[i] for i in min(groups, key=len)]
