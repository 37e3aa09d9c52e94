"""FedMTL — Smith et al., *Federated Multi-Task Learning*, NeurIPS 2017 (MOCHA). https://arxiv.org/abs/1705.10467

    paper    here          meaning
    w_t      me.w          client t's model: column t of W; the server keeps everybody's last one
    Omega    -             how the clients' models are related
    lambda   lam           weight of the relations

    (1)  sum_t l_t(w_t) + lambda/2 tr(W Omega^-1 W^T)
    (2)  its slope in w_t, besides l_t's: lambda sum_s (Omega^-1)_ts w_s
    (3)  Omega = (W^T W)^(1/2) / tr (W^T W)^(1/2), the best Omega of trace 1 for a given W

Kept from the paper: its objective (1) with learned relations, of Zhang and Yeung, and the turns that clients and server
take in lowering it: clients in w_t, the server in Omega. The numbers are ours.

Departs from the paper: clients take the run's steps on (1) with their networks, where MOCHA solves its dual, for convex
models only. The server sends a client the two parts of (2), so that no client sees another's model. EPSILON times the
largest entry is added to the diagonal of W^T W, which is never inverted with less. Only clients that have trained are
columns of W. PFLlib's file (`clientmtl.py`) has one constant for Omega, which makes (1) weight decay.

Read: its abstract and PFLlib's file; not its authors' code (https://github.com/gingsmith/fmtl).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.authoring import (
    Central, Local, Method, NonNegative, OwnModel, Params, Record, Reply, Shared, Update, merge_by_client,
)  # fmt: skip

EPSILON = 1e-3


class Models(Record):
    """The last model of every client that has trained."""

    w: dict[int, Params]


class Relations(Record):
    """Entry (t, t) of Omega^-1, and the sum of all other models by their entries (t, s)."""

    own: float
    others: Params


@dataclass(frozen=True)
class FedMTL(Method[Models, OwnModel, Relations, Shared]):
    """Every client trains its own model; how all of them are related is learned and regularizes each."""

    family = "personal aggregation"
    travels = "whole model"
    stays = "whole model (a copy is sent)"
    uploaded_fields = ("w",)
    traffic_down = "P + 1"
    traffic_up = "P"
    cost = 1.1

    lam: NonNegative = 0.001
    """weight of the relations; 0 is local training"""

    def server_init(self, central: Central) -> Models:
        return Models({})

    def broadcast(self, server: Models, client: int, central: Central) -> Relations:
        nothing = central.init().params().zeros()
        if client not in server.w:
            return Relations(0.0, nothing)
        names = central.init().live()
        t = list(server.w).index(client)
        W = torch.stack([w.restrict(names).flatten() for w in server.w.values()]).double()
        row = _inverse(W @ W.T)[t]
        total = nothing
        for s, (j, w) in enumerate(server.w.items()):
            total = total if j == client else total + float(row[s]) * w
        return Relations(float(row[t]), total)

    def aggregate(self, server: Models, replies: Sequence[Reply[Shared]], central: Central) -> Models:
        return Models(merge_by_client(server.w, {r.client: r.up.w for r in replies}))

    def local_update(self, me: OwnModel, down: Relations, local: Local) -> Update[Shared, OwnModel]:
        m = local.model(me.w)
        others = down.others.restrict(m.live())
        local.sgd(m, pull=(self.lam * down.own, others.zeros()), shift=self.lam * others)  # Eq. (2)
        return Update(Shared(m.params()), OwnModel(m.state()), m)


def _inverse(gram: Tensor) -> Tensor:
    """Omega^-1 of Eq. (3), from W^T W."""
    vectors, values, _ = torch.svd(gram + EPSILON * gram.amax() * torch.eye(len(gram)).type_as(gram))
    roots = values.sqrt()
    return vectors @ torch.diag(roots.sum() / roots) @ vectors.T
