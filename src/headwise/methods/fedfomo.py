"""FedFomo — Zhang et al., *Personalized Federated Learning with First Order Model Optimization*, ICLR 2021.
https://arxiv.org/abs/2012.08565

    paper       here       meaning
    theta_i     me.w       client i's personal model after its last training; the server keeps every client's
    theta_i^old me.old     the model that training started from
    w_n         weights    how much model n lowers theta_i^old's loss on i's validation samples, per unit of distance
    P           P          affinities: the sums of all w_n so far; they decide which models a client is sent
    M           M          models sent per client and round

    (1)  w_n = (L(theta_i^old) - L(theta_n)) / ||theta_n - theta_i^old||, L on the validation samples; n = i included
    (2)  theta_i <- theta_i^old + sum_n w_n (theta_n - theta_i^old), the positive w_n scaled to sum to one
    (3)  P[i, n] <- P[i, n] + w_n

Departs from the paper: the M best by P are sent, without its random exploration, except that ties (at first, all) are
broken at random; a client's own model is always a candidate and never sent back. Where no w_n is positive, Eq. (2)
keeps theta_i^old, which is trained again; public code continues from theta_i there.

Read: its abstract, its authors' code (https://github.com/NVlabs/FedFomo), PFLlib's and FL-bench's files. The numbers
are ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.authoring import (
    Central, Local, Method, Natural, Params, Predictor, Record, Reply, SplitModel, Unit, Update, mean, merge_by_client,
)  # fmt: skip

EPSILON = 1e-5  # keeps the weight of an identical model finite


class Server(Record):
    """The last model of every client that has trained, and the clients' affinities."""

    models: dict[int, Params]
    P: Tensor
    """[N, N]: row i holds the affinities of client i"""


class Own(Record):
    """A client's own model, and the one its training started from."""

    w: Params
    old: Params


class Down(Record):
    """Models of other clients."""

    models: dict[int, Params]


class Up(Record):
    """A client's model, and its weights for the models it was sent."""

    w: Params
    clients: Tensor
    """[models] int32"""
    weights: Tensor
    """[models]"""


@dataclass(frozen=True)
class FedFomo(Method[Server, Own, Down, Up]):
    """Every client mixes in the models that do better on its validation samples, then keeps training."""

    family = "personal aggregation"
    travels = "up to M whole models down; whole model and a weight for each up"
    stays = "whole model (a copy is sent)"
    uploaded_fields = ("w", "old")  # the old one is a mixture of models the server has
    traffic_down = "?"  # M * P, less until M others have trained
    traffic_up = "?"  # P + 2 for each model that was sent
    cost = 1.2
    shows = {"server.P": "client client"}

    M: Natural = 5
    """models sent to each client; 0: it trains alone, and reverts if validation samples show no gain"""
    validation: Unit = 0.2
    """share of the training samples held out to compare models"""

    def server_init(self, central: Central) -> Server:
        return Server({}, torch.eye(central.N))

    def broadcast(self, server: Server, client: int, central: Central) -> Down:
        chance = torch.randperm(central.N, generator=central.rng)
        order = chance[_grow(central.N, server.P)[client][chance].sort(descending=True, stable=True).indices]
        best = [j for j in map(int, order) if j in server.models and j != client][: self.M]
        return Down({j: server.models[j] for j in sorted(best)})

    def aggregate(self, server: Server, replies: Sequence[Reply[Up]], central: Central) -> Server:
        P = _grow(central.N, server.P)
        for r in replies:
            P[r.client, r.up.clients.long()] += r.up.weights  # Eq. (3)
        return Server(merge_by_client(server.models, {r.client: r.up.w for r in replies}), P)

    def client_init(self, local: Local) -> Own:
        first = local.init().state()
        return Own(first, first)

    def local_update(self, me: Own, down: Down, local: Local) -> Update[Up, Own]:
        rest, validation = local.hold_out(self.validation)
        own, old = local.model(me.w), local.model(me.old)
        candidates = [*down.models.values(), own.params()]
        weights = torch.tensor([_weight(old, w, validation, local) for w in candidates])
        positive = weights.clamp(min=0)
        m = old
        if positive.sum() > 0:
            m = local.model(Params({**me.w, **mean(candidates, map(float, positive))}))  # Eq. (2)
        begun = m.state()
        rest.sgd(m)
        clients = torch.tensor(list(down.models), dtype=torch.int32)
        return Update(Up(m.params(), clients, weights[:-1]), Own(m.state(), begun), m)

    def personalize(self, me: Own, down: Down, local: Local) -> Predictor:
        return local.model(me.w)


def _grow(n: int, P: Tensor) -> Tensor:
    """[n, n]: a copy, with rows as at the beginning for clients that joined later."""
    grown = torch.eye(n)
    grown[: len(P), : len(P)] = P
    return grown


def _weight(old: SplitModel, w: Params, validation: tuple[Tensor, Tensor], local: Local) -> float:
    """Eq. (1), as numbered above."""
    with torch.no_grad():
        gain = local.loss(old, *validation) - local.loss(local.model(w), *validation)
        distance = (w.restrict(old.live()) - old.live()).sq_norm().sqrt()
    return float(gain / (distance + EPSILON))
