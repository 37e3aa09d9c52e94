"""FedAMP — Huang et al., *Personalized Cross-Silo Federated Learning on Non-IID Data*, AAAI 2021.
https://arxiv.org/abs/2007.03797

    paper     here     meaning
    w_i       me.w     client i's personal model; the server keeps everybody's last one
    u_i       down.w   its cloud model: a mixture of all clients' models that favours those close to w_i
    alpha_k   alpha    step of the message passing
    lambda    lam      weight of collaboration
    sigma     sigma    how fast attention falls with the squared distance: A(x) = 1 - exp(-x / sigma)

The server sends u_i = (1 - sum a_j) w_i + sum a_j w_j with a_j = alpha_k A'(||w_i - w_j||^2) over all j other than i;
the client minimizes F_i(w) + lambda / (2 alpha_k) ||w - u_i||^2.

Departs from the paper: its experiments use alpha_k of 1,000 and more, at which the pull lambda / alpha_k has no effect
on a model that continues from w_i; our default alpha_k = sigma makes the attention exp(-x / sigma) and keeps the pull.
Where the others' weights sum to more than one, they are scaled to sum to one. Distances are between parameters, without
BatchNorm statistics. A client that has not trained yet has the initial model, and is in nobody else's mixture.

Read: its abstract and PFLlib's `clientamp.py`, in which the pull has no gradient; its authors' code was not found. What
the paper's experiments use is from memory.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headwise.authoring import (
    Central, Local, Method, NonNegative, OwnModel, Params, Positive, Record, Reply, Shared, Update, mean,
    merge_by_client,
)  # fmt: skip


class Models(Record):
    """The last model of every client that has trained."""

    w: dict[int, Params]


@dataclass(frozen=True)
class FedAMP(Method[Models, OwnModel, Shared, Shared]):
    """Every client trains its own model, pulled to a mixture of similar models."""

    family = "personal aggregation"
    travels = "whole model"
    stays = "whole model (a copy is sent)"
    uploaded_fields = ("w",)
    traffic_down = "P"
    traffic_up = "P"

    alpha: Positive = 10.0
    """alpha_k: how much of the others is mixed into the cloud model; the pull to it is lam / alpha"""
    lam: NonNegative = 1.0
    """weight of collaboration; 0 is local training (with start = own)"""
    sigma: Positive = 10.0
    """squared distance between models at which attention has fallen to 1/e"""
    start: Literal["own", "cloud"] = "own"
    """where local training starts: from the client's own model, or from the cloud model"""
    detach_reg: bool = False
    """drop the proximal term's gradient, as PFLlib does since March 2023; this is local training"""

    def server_init(self, central: Central) -> Models:
        return Models({})

    def broadcast(self, server: Models, client: int, central: Central) -> Shared:
        first = central.init()
        w_i = server.w.get(client) or first.params()
        others = [w for j, w in server.w.items() if j != client]
        here = w_i.restrict(first.live())
        near = [float((w.restrict(first.live()) - here).sq_norm()) for w in others]
        a = [self.alpha * math.exp(-x / self.sigma) / self.sigma for x in near]  # alpha_k A'
        a = [share / max(sum(a), 1.0) for share in a]
        return Shared(mean([w_i, *others], [max(1 - sum(a), 0.0), *a]))  # Algorithm 1: u_i

    def aggregate(self, server: Models, replies: Sequence[Reply[Shared]], central: Central) -> Models:
        return Models(merge_by_client(server.w, {r.client: r.up.w for r in replies}))

    def local_update(self, me: OwnModel, down: Shared, local: Local) -> Update[Shared, OwnModel]:
        m = local.model(me.w if self.start == "own" else Params({**me.w, **down.w}))
        pull = (self.lam / self.alpha, down.w.restrict(m.live()))  # Algorithm 1: to u_i
        local.sgd(m, pull=None if self.detach_reg else pull)
        return Update(Shared(m.params()), OwnModel(m.state()), m)
