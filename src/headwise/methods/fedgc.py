"""FedGC — Niu and Deng, *Federated Learning for Face Recognition with Gradient Correction*, AAAI 2022.
https://arxiv.org/abs/2112.07246

    paper      here       meaning
    theta      server.w   the shared feature extractor
    W_i        heads[i]   client i's classifier; its rows are class embeddings
    w_ic       rows[m]    the row of a class c that client i holds; ^w_ic is the same, not differentiated
    lambda     server_lr  rate of the server's correction

    (1)  R = sum over the clients i and their classes c of
         -log(exp(^w_ic . ^w_ic) / (exp(^w_ic . ^w_ic) + sum over other clients j and their classes d != c of
         exp(^w_ic . w_jd)))
    (2)  after each round, the server takes one step on R: W <- W - lambda dR/dW

From its abstract, which says that only gradients across clients are added, and PFLlib's file
(https://github.com/TsingZ0/PFLlib, `servergc.py`); the numbers are ours. The paper's text was not at hand. In it, each
identity belongs to one client. Where clients share classes, (1) leaves out the others' rows of class c, which it would
otherwise push apart; PFLlib takes the mean row of class c for ^w_ic, and leaves out all rows of a client that holds c.
Its server_lr is lambda times the clients' learning rate.

Departs from it: a client's classifier has a row for every class, and only those of its own classes are corrected.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from headwise.authoring import (
    Central, Local, Method, NonNegative, Nothing, Params, Record, Reply, Shared, Update, gradient, last_matrix, mean,
    merge_by_client, step,
)  # fmt: skip


class Server(Record):
    """The shared body, and every client's last head."""

    w: Params
    heads: dict[int, Params]


@dataclass(frozen=True)
class FedGC(Method[Server, Nothing, Shared, Shared]):
    """A shared body and personal heads whose class vectors the server pushes apart from those of other clients."""

    family = "shared body"
    tasks = ("classification",)
    travels = "whole model"
    stays = "nothing"
    traffic_down = "P"
    traffic_up = "P"

    server_lr: NonNegative = 0.01
    """rate of the server's step on the class vectors; 0 is FedPer with heads that are kept at the server"""

    def server_init(self, central: Central) -> Server:
        return Server(central.init().params("body"), {})

    def broadcast(self, server: Server, client: int, central: Central) -> Shared:
        return Shared(server.w | (server.heads.get(client) or central.init().params("head")))

    def aggregate(self, server: Server, replies: Sequence[Reply[Shared]], central: Central) -> Server:
        if not replies:
            return server
        w = mean((r.up.w.select("body.") for r in replies), [r.n for r in replies])
        heads = merge_by_client(server.heads, {r.client: r.up.w.select("head.") for r in replies})
        return Server(w, self._correct(heads, central))

    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Shared, Nothing]:
        m = local.model(down.w)
        local.sgd(m)
        return Update(Shared(m.params()), me, m)

    def _correct(self, heads: dict[int, Params], central: Central) -> dict[int, Params]:
        """Eq. (2)."""
        owned = {i: list(central.labels(i)) for i in heads}
        name = last_matrix(next(iter(heads.values())))
        rows = torch.cat([heads[i][name][labels] for i, labels in owned.items()])
        clients = torch.tensor([i for i, labels in owned.items() for _ in labels])
        classes = torch.tensor([c for labels in owned.values() for c in labels])
        apart = (clients[:, None] != clients) & (classes[:, None] != classes)
        own = rows.square().sum(1, keepdim=True)

        def regularizer(at: Params) -> Tensor:  # Eq. (1)
            others = (rows @ at["rows"].T).masked_fill(~apart, float("-inf"))
            first = torch.zeros(len(rows), dtype=torch.long)
            return cross_entropy(torch.cat((own, others), 1), first, reduction="sum")

        corrected = Params(rows=rows)
        corrected = step(corrected, gradient(regularizer, corrected), self.server_lr)["rows"]
        moved = dict[int, Params]()
        for i, head in heads.items():
            matrix = head[name].clone()
            matrix[owned[i]] = corrected[clients == i]
            moved[i] = Params({**head, name: matrix})
        return moved
