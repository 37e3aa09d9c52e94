"""FedAP — Lu et al., *Personalized Federated Learning with Adaptive Batchnorm for Healthcare*, IEEE Transactions on Big
Data 2022. https://arxiv.org/abs/2112.00734

    paper      here        meaning
    mu, sigma  mean, std   a client's means and standard deviations of what enters its BatchNorm layers, by channel
    w_ij       weights     how much client i's model takes of client j's
    lambda     own         w_ii

    (1)  d_ij = sum over BatchNorm layers of sqrt(|mu_i - mu_j|^2 + |sigma_i - sigma_j|^2), a Wasserstein distance
    (2)  w_ij = (1 - lambda) (1/d_ij) / sum of 1/d_ik over all k other than i;  w_ii = lambda
    (3)  client i's model: sum_j w_ij times client j's, except for BatchNorm layers, which stay at their client

As its authors' code (https://github.com/microsoft/PersonalizedFL, `alg/fedap.py`); the numbers are ours.

Departs from it: (1) comes from each client's samples in the initial network, once, before the first round; the code has
a network that was trained on public samples. Only clients that have trained count in (3), with their last models, and
lambda is 0 for a client that has not trained yet. Equal statistics, as without BatchNorm, count as SMALL apart.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headwise.authoring import (
    Central, Local, Method, Params, Predictor, Record, Reply, Shared, SplitModel, Unit, Update, mean, merge_by_client,
    split_norms,
)  # fmt: skip

SMALL = 1e-6


class Statistics(Record):
    """A client's answer before the first round: mean and deviation of what enters each BatchNorm layer."""

    mean: Params
    std: Params


class Server(Record):
    """The first model, distances between clients [N, N], and the last model of each client that has trained."""

    w: Params
    distance: Tensor
    models: dict[int, Params]


class Norms(Record):
    """A client's BatchNorm layers: parameters and running statistics."""

    norms: Params


@dataclass(frozen=True)
class FedAP(Method[Server, Norms, Shared, Shared]):
    """Each client's model is a mean that favours clients with similar features; BatchNorm layers stay local."""

    family = "personal aggregation"
    travels = "whole model except BatchNorm layers; statistics once"
    stays = "BatchNorm layers"
    traffic_down = "P"
    traffic_up = "P"
    census = Statistics
    shows = {"server.distance": "client client"}

    own: Unit = 0.5
    """how much of its own last model a client takes"""

    def server_init(self, central: Central) -> Server:
        return Server(split_norms(central.init())[1], torch.full((central.N, central.N), SMALL), {})

    def answer_census(self, local: Local) -> Statistics:
        entering = _watch_norms(local.init().eval(), next(local.batches(1, size=local.n))[0])
        rows = Params({k: x.transpose(0, 1).flatten(1) for k, x in entering.items()})  # [channels, all values]
        return Statistics(rows.map(lambda x: x.mean(1)), rows.map(lambda x: x.std(1, correction=0)))

    def use_census(self, server: Server, replies: Sequence[Reply[Statistics]], central: Central) -> Server:
        distance = server.distance.clone()
        for a in replies:
            for b in replies:
                means, stds = a.up.mean - b.up.mean, a.up.std - b.up.std
                layers = [(means[k].square().sum() + stds[k].square().sum()).sqrt() for k in means]
                distance[a.client, b.client] = max(float(sum(layers)), SMALL)  # Eq. (1)
        return Server(server.w, distance, server.models)

    def broadcast(self, server: Server, client: int, central: Central) -> Shared:  # Eq. (3)
        mine = server.models.get(client, server.w)
        others = [j for j in server.models if j != client]
        if not others:
            return Shared(mine)
        last = len(server.distance)  # clients that joined later have no statistics
        near = [1 / float(server.distance[client, j]) if max(client, j) < last else 1.0 for j in others]
        own = self.own if client in server.models else 0.0
        weights = [own, *((1 - own) * x / sum(near) for x in near)]  # Eq. (2)
        return Shared(mean([mine, *(server.models[j] for j in others)], weights))

    def aggregate(self, server: Server, replies: Sequence[Reply[Shared]], central: Central) -> Server:
        models = merge_by_client(server.models, {r.client: r.up.w for r in replies})
        return Server(server.w, server.distance, models)

    def client_init(self, local: Local) -> Norms:
        return Norms(split_norms(local.init())[0])

    def local_update(self, me: Norms, down: Shared, local: Local) -> Update[Shared, Norms]:
        m = local.model(down.w | me.norms)
        local.sgd(m)
        norms, others = split_norms(m)
        return Update(Shared(others), Norms(norms), m)

    def personalize(self, me: Norms, down: Shared, local: Local) -> Predictor:
        return local.model(down.w | me.norms)


def _watch_norms(m: SplitModel, x: Tensor) -> dict[str, Tensor]:
    """What enters each BatchNorm layer."""
    met: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda _, given: met.update({name: given[0]})

    names = dict.fromkeys(k.rpartition(".")[0] for k in split_norms(m)[0])
    hooks = [m.get_submodule(name).register_forward_pre_hook(keep(name)) for name in names]
    with torch.no_grad():
        m(x)
    for hook in hooks:
        hook.remove()
    return met
