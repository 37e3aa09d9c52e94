"""pFedHN — Shamsian et al., *Personalized Federated Learning using Hypernetworks*, ICML 2021.
https://arxiv.org/abs/2103.04628

    paper    here         meaning
    h, phi   server.net   the server's hypernetwork and its parameters
    v_i      table[i]     embedding of client i
    theta_i  down.w       client i's model: h(v_i; phi)
    dtheta_i up.d         how far client i's training moved it

    (1)  theta_i: layers with ReLU in between map v_i to `hidden` numbers, and a linear one each to the model's tensors
    (2)  phi <- phi + server_lr * mean over the round's clients of (dtheta_i / dphi)^T dtheta_i
    (3)  v_i <- v_i + embed_lr (dtheta_i / dv_i)^T dtheta_i

As its authors' code (https://github.com/AvivSham/pFedHN, `models.py` and `trainer.py` of `pfedhn`); the numbers are
ours. The hypernetwork never leaves the server, which computes (1) again for (2) instead of keeping a graph.

Departs from it: a round may have several clients; there it has one. Steps are plain (code: momentum 0.9, weight decay,
a clip at 50), so rates are larger than its 0.01. A new client has the mean embedding and trains from there; the
paper fits an embedding for it. The hypernetwork has `hidden` times as many parameters as the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, relu

from headwise.authoring import (
    Central, Count, Local, Method, Natural, NonNegative, Nothing, Params, Positive, Record, Reply, Shared, Update,
    gradient, mean, step,
)  # fmt: skip


class Server(Record):
    """The hypernetwork, the clients' embeddings [N, embed], and what travels without being trained."""

    net: Params
    table: Tensor
    rest: Params


class Change(Record):
    """How far a client's training moved its model; values of BatchNorm statistics, where they travel."""

    d: Params


@dataclass(frozen=True)
class PFedHN(Method[Server, Nothing, Shared, Change]):
    """A network on the server makes each client's model from a vector of its own, and learns from how they train."""

    family = "personal aggregation"
    travels = "whole model"
    stays = "nothing"
    traffic_down = "P"
    traffic_up = "P"

    embed: Count = 8
    """numbers in a client's embedding"""
    hidden: Count = 100
    """width of the hypernetwork"""
    depth: Natural = 1
    """its hidden layers after the first"""
    server_lr: Positive = 0.5
    """learning rate of the hypernetwork"""
    embed_lr: NonNegative = 0.5
    """learning rate of the embeddings"""

    def server_init(self, central: Central) -> Server:
        m = central.init()
        sizes = [self.embed, *[self.hidden] * (self.depth + 1)]
        outputs = [t.numel() for t in m.live().values()]

        def make() -> nn.ModuleList:
            inner = [nn.Linear(a, b) for a, b in pairwise(sizes)]
            return nn.ModuleList([nn.ModuleList(inner), nn.ModuleList(nn.Linear(self.hidden, n) for n in outputs)])

        net = central.draw(make, "pfedhn")
        table = torch.randn(central.N, self.embed, generator=central.rng)
        rest = Params({k: t for k, t in m.params().items() if k not in m.live()})
        return Server(Params(net.state_dict()), table, rest)

    def broadcast(self, server: Server, client: int, central: Central) -> Shared:
        known = client < len(server.table)
        theta = self._make_model(server.net, server.table[client] if known else server.table.mean(0), central)
        return Shared(theta | server.rest)

    def aggregate(self, server: Server, replies: Sequence[Reply[Change]], central: Central) -> Server:
        if not replies:
            return server
        missing = central.N - len(server.table)  # clients that joined later
        table = torch.cat([server.table, server.table.mean(0).expand(missing, -1)])
        slopes = list[Params]()
        for r in replies:
            d = r.up.d.restrict(central.init().live())
            at = Params({**server.net, "v": table[r.client]})
            slope = gradient(lambda p, d=d: -self._make_model(p, p["v"], central).dot(d), at)
            table[r.client] -= self.embed_lr * slope["v"]  # Eq. (3)
            slopes.append(slope.restrict(server.net))
        rest = mean(r.up.d for r in replies).restrict(server.rest)
        return Server(step(server.net, mean(slopes), self.server_lr), table, rest)  # Eq. (2)

    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Change, Nothing]:
        m = local.model(down.w)
        local.sgd(m)
        moved = {k: t - down.w[k] if k in m.live() else t for k, t in m.params().items()}
        return Update(Change(Params(moved)), me, m)

    def _make_model(self, net: Params, v: Tensor, central: Central) -> Params:
        """Eq. (1)."""
        h = linear(v, net["0.0.weight"], net["0.0.bias"])
        for i in range(1, self.depth + 1):
            h = linear(relu(h), net[f"0.{i}.weight"], net[f"0.{i}.bias"])
        like = central.init().live()
        made = [linear(h, net[f"1.{i}.weight"], net[f"1.{i}.bias"]) for i in range(len(like))]
        return Params({k: t.view(like[k].shape) for k, t in zip(like, made, strict=True)})
