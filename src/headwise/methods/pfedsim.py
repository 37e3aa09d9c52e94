"""pFedSim — Tan et al., *pFedSim: Similarity-Aware Model Aggregation Towards Personalized Federated Learning*, 2023.
https://arxiv.org/abs/2305.15706

    paper     here            meaning
    theta_i   models[i]       client i's last model in the second phase; before its first, the last global model
    phi_ij    similarity      how alike the classifiers of clients i and j are, in [0, 1]; 0 until they met in a round
    rho       warm_up         share of the rounds in the first phase, which is FedAvg

    (1)  phi_ij = max(0, mean over classes of the cosine between the rows of both classifiers)
    (2)  client i's body: mean of all bodies by weight -log(1 - phi_ij), where phi_ii = MOST; its classifier is its own

As its authors' code, which is FL-bench's `server/pfedsim.py`; the numbers are ours.

Departs from it: a similarity above MOST counts as MOST (there, equal classifiers have infinite weight). The code
evaluates a client's last model; here the model after a download is (2), and the last one is the `stale` moment.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from headwise.authoring import (
    Central, Local, Method, Nothing, Params, Record, Reply, Shared, SplitModel, Unit, Update, last_matrix, mean,
    merge_by_client,
)  # fmt: skip

MOST = 0.9999


class Server(Record):
    """The global model of the first phase, everybody's model in the second, and their similarities [N, N]."""

    w: Params
    models: dict[int, Params]
    similarity: Tensor


@dataclass(frozen=True)
class PFedSim(Method[Server, Nothing, Shared, Shared]):
    """FedAvg first; then each client's body is a mean that favours clients with a similar classifier."""

    family = "personal aggregation"
    tasks = ("classification",)
    travels = "whole model"
    stays = "nothing"
    traffic_down = "P"
    traffic_up = "P"

    warm_up: Unit = 0.5
    """share of the rounds, rounded down, in which it is FedAvg"""

    def server_init(self, central: Central) -> Server:
        return Server(central.init().params(), {}, torch.zeros(central.N, central.N))

    def broadcast(self, server: Server, client: int, central: Central) -> Shared:
        own = server.models.get(client)
        if own is None:
            return Shared(server.w)
        phi = server.similarity[client, list(server.models)].clamp(max=MOST)
        phi[list(server.models).index(client)] = MOST
        weights = map(float, -(1 - phi.double()).log())
        return Shared(Params({**mean(server.models.values(), weights), **own.select("head.")}))  # Eq. (2)

    def aggregate(self, server: Server, replies: Sequence[Reply[Shared]], central: Central) -> Server:
        if not replies:
            return server
        if central.t <= int(self.warm_up * central.T):
            return Server(mean((r.up.w for r in replies), [r.n for r in replies]), {}, server.similarity)
        similarity = torch.zeros(central.N, central.N)
        similarity[: len(server.similarity), : len(server.similarity)] = server.similarity
        heads = [r.up.w.select("head.") for r in replies]
        rows = torch.stack([h[last_matrix(h)] for h in heads])
        phi = cosine_similarity(rows[:, None], rows[None], dim=3).mean(2).clamp(min=0)  # Eq. (1)
        ids = torch.tensor([r.client for r in replies])
        similarity[ids[:, None], ids] = phi
        models = merge_by_client(server.models, {r.client: r.up.w for r in replies})
        return Server(server.w, models, similarity)

    def global_model(self, server: Server, central: Central) -> SplitModel | None:
        return None if server.models else central.model(server.w)

    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Shared, Nothing]:
        m = local.model(down.w)
        local.sgd(m)
        return Update(Shared(m.params()), me, m)
