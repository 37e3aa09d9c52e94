"""APPLE — Luo and Wu, *Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning*, IJCAI 2022.
https://arxiv.org/abs/2110.08394

    paper       here          meaning
    w_i^(c)     me.core       client i's core model, all that it uploads
    p_i         me.p          its directed relationship: its weight for each client's core model
    w_i^(p)     mixture       its personal model: sum_j p_ij w_j^(c)
    p_0         down.p_0      initial p_i: each client's share of all samples
    eta_1       train.lr      learning rate of core models
    eta_2       relation_lr   learning rate of p_i
    lambda(r)   _pull         how strongly p_i is pulled to p_0: falls from 1 to 0 over the first share L of all rounds

Departs from the paper: all core models are downloaded, and p_0 with them, because a client doesn't know how many
samples the others have. By the chain rule a core model moves by p_ii times the gradient, and the personal model by
p_ii^2, close to zero with many clients; `core_lr = "scaled"` multiplies the rate by N, as PFLlib does.

Read: its abstract and PFLlib's `clientapple.py`; not its authors' code (https://github.com/ljaiverson/pFL-APPLE).
Numbers of the paper's sections, equations and algorithms are from memory.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from headwise.authoring import (
    Central, Local, Method, NonNegative, Params, Predictor, Record, Reply, Shared, SplitModel, Unit, Update, gradient,
    merge_by_client, step,
)  # fmt: skip


class Cores(Record):
    """The core models of clients that have trained; all others are still the initial model."""

    cores: dict[int, Params]


class Down(Record):
    """The core models of the other clients that have trained, and each client's share of all samples."""

    cores: dict[int, Params]
    p_0: Tensor  # [N]


class Own(Record):
    """A client's core model and its relationship to all core models, None until it first takes part."""

    core: Params
    p: Tensor | None
    """[N]"""


@dataclass(frozen=True)
class APPLE(Method[Cores, Own, Down, Shared]):
    """Every client learns its own core model and its own weighted combination of all clients' core models."""

    family = "personal aggregation"
    travels = "all core models down, own core model up"
    optimizers = "own"
    stays = "relationship with the others"
    uploaded_fields = ("core",)
    traffic_down = "?"  # P for each other client that has trained, and N
    traffic_up = "P"
    cost = 1.5

    relation_lr: NonNegative = 0.001
    """learning rate of the relationship; 0 keeps its initial value"""
    mu: NonNegative = 0.1
    """weight of the pull of the relationship to its initial value"""
    L: Unit = 0.2
    """share of all rounds over which that pull falls to zero"""
    core_lr: Literal["local", "scaled"] = "local"
    """learning rate of core models: `train.lr`, or `train.lr` times the number of clients"""

    def server_init(self, central: Central) -> Cores:
        return Cores({})

    def broadcast(self, server: Cores, client: int, central: Central) -> Down:
        here = {*central.clients, client}
        n = torch.tensor([float(central.size(j)) if j in here else 0.0 for j in range(central.N)])
        return Down({j: w for j, w in server.cores.items() if j != client}, n / n.sum())

    def aggregate(self, server: Cores, replies: Sequence[Reply[Shared]], central: Central) -> Cores:
        return Cores(merge_by_client(server.cores, {r.client: r.up.w for r in replies}))

    def client_init(self, local: Local) -> Own:
        return Own(local.init().state(), None)

    def local_update(self, me: Own, down: Down, local: Local) -> Update[Shared, Own]:
        m = local.model(me.core)
        core = m.weights().map(Tensor.detach)
        others = _collect_others(down, local)
        p = _relationship(me, down)
        rate = local.lr * (len(local.clients) if self.core_lr == "scaled" else 1)
        pull = self.mu * self._pull(local)

        def loss(q: Params, x: Tensor, y: Tensor) -> Tensor:
            w = _mixture(_without_p(q), q["p"], others, local.client)
            return local.loss(m.given(w), x, y) + pull / 2 * (q["p"] - down.p_0).square().sum()

        for x, y in local.batches(train=(m,)):
            g = gradient(lambda q, x=x, y=y: loss(q, x, y), core | Params(p=p))
            core = step(core, _without_p(g), rate)  # Algorithm 1, by the chain rule
            p = p - self.relation_lr * g["p"]
        mine = local.model(Params({**m.state(), **core}))
        return Update(Shared(mine.params()), Own(mine.state(), p), _personal(mine, p, others, local))

    def personalize(self, me: Own, down: Down, local: Local) -> Predictor:
        return _personal(local.model(me.core), _relationship(me, down), _collect_others(down, local), local)

    def _pull(self, local: Local) -> float:
        """lambda(r) = (cos(pi r / L) + 1) / 2 while r < L, then 0; rounds r count from 0."""
        r = local.t - 1
        L = self.L * local.T
        return (math.cos(math.pi * r / L) + 1) / 2 if r < L else 0.0


def _relationship(me: Own, down: Down) -> Tensor:
    """Its relationship; at the beginning, and to clients that joined later, by their shares of all samples."""
    return down.p_0 if me.p is None else torch.cat([me.p, down.p_0[len(me.p) :]])


def _collect_others(down: Down, local: Local) -> dict[int, Params]:
    first = local.init().params()
    return {j: down.cores.get(j, first) for j in local.clients if j != local.client}


def _mixture(core: Params, p: Tensor, others: Mapping[int, Params], i: int) -> Params:
    """w_i^(p) = sum_j p_ij w_j^(c); layers that never travel stay the client's own."""
    names = [k for k in core if k in next(iter(others.values()), core)]
    mixed = {k: p[i] * core[k] + sum(p[j] * w[k] for j, w in others.items()) for k in names}
    return Params({**core, **mixed})


def _personal(m: SplitModel, p: Tensor, others: Mapping[int, Params], local: Local) -> SplitModel:
    return local.model(Params({**m.state(), **_mixture(m.weights().map(Tensor.detach), p, others, local.client)}))


def _without_p(q: Params) -> Params:
    return Params({k: t for k, t in q.items() if k != "p"})
