"""pFedLA — Ma et al., *Layer-Wised Model Aggregation for Personalized Federated Learning*, CVPR 2022.
https://arxiv.org/abs/2205.03993

    paper       here         meaning
    theta_i     models[i]    client i's model as it was after its last training
    HN_i        nets[i]      client i's hypernetwork, which stays at the server, and its embedding v_i
    alpha_i     _weights     [layers, N]: how much each client's layer counts in client i's
    theta~_i    down.w       client i's model before training

    (1)  h = three layers with ReLU of v_i; alpha_i^l = ReLU(W_l h + b_l), normalized to sum to one
    (2)  theta~_i^l = sum_j alpha_ij^l theta_j^l
    (3)  d_i = theta_i - theta~_i after client i's training; HN_i <- HN_i + server_lr (d theta~_i / d HN_i)^T d_i

From its abstract, FL-bench's file (https://github.com/KarhouTam/FL-bench, `server/pfedla.py`) and an earlier one
of its author (https://github.com/KarhouTam/pFedLA); the numbers are ours. A layer is all that shares a prefix in the
network, such as a weight and its bias. If all weights of a layer are 0, the client's own counts. (3) lowers the
client's loss; both codes take the step with the other sign. FL-bench adds d_i to client i's model of the round before.

Departs from it: clients that were drawn together see each other's models of the round before; in FL-bench they train
one after another. Models count once their clients have taken part, and hypernetworks learn from the second time on.
HeurpFedLA, which keeps some layers at the client, is left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, relu

from headwise.authoring import (
    Central, Count, Local, Method, Nothing, Params, Positive, Record, Reply, Shared, Update, gradient, mean,
    merge_by_client, step,
)  # fmt: skip


class Server(Record):
    """Every client's model and hypernetwork, of those that have taken part."""

    models: dict[int, Params]
    nets: dict[int, Params]


@dataclass(frozen=True)
class PFedLA(Method[Server, Nothing, Shared, Shared]):
    """For each client, a network on the server learns how much every other client's layers count in its own."""

    family = "personal aggregation"
    travels = "whole model"
    stays = "nothing"
    traffic_down = "P"
    traffic_up = "P"

    embed: Count = 16
    """numbers in a client's embedding"""
    hidden: Count = 32
    """width of the hypernetworks"""
    server_lr: Positive = 0.01
    """learning rate of the hypernetworks and embeddings"""

    def server_init(self, central: Central) -> Server:
        return Server({}, {})

    def broadcast(self, server: Server, client: int, central: Central) -> Shared:
        if client not in server.models:
            return Shared(mean(server.models.values()) if server.models else central.init().params())
        return Shared(_mix(server.nets[client], client, server.models))

    def aggregate(self, server: Server, replies: Sequence[Reply[Shared]], central: Central) -> Server:
        models = merge_by_client(server.models, {r.client: r.up.w for r in replies})
        return Server(models, merge_by_client(server.nets, {r.client: self._step(server, r, central) for r in replies}))

    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Shared, Nothing]:
        m = local.model(down.w)
        local.sgd(m)
        return Update(Shared(m.params()), me, m)

    def _step(self, server: Server, reply: Reply[Shared], central: Central) -> Params:
        """Eq. (3); a client that took part for the first time gets its hypernetwork, the same for all at first."""
        i = reply.client
        if i not in server.nets:
            return self._start(central)
        before = _mix(server.nets[i], i, server.models)
        trained = [k for k, t in before.items() if t.is_floating_point()]
        d = (reply.up.w - before).restrict(trained)
        slope = gradient(lambda net: -_mix(net, i, server.models).restrict(trained).dot(d), server.nets[i])
        return step(server.nets[i], slope, self.server_lr)

    def _start(self, central: Central) -> Params:
        layers = {_layer(k) for k in central.init().params()}

        def make() -> nn.ModuleDict:
            inner = [nn.Linear(a, b) for a, b in pairwise([self.embed, *[self.hidden] * 3])]
            outer = [nn.Linear(self.hidden, central.N) for _ in layers]
            for layer in outer:
                nn.init.uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
            return nn.ModuleDict({"inner": nn.ModuleList(inner), "outer": nn.ModuleList(outer)})

        net = central.draw(make, "pfedla")
        embedding = central.draw(lambda: nn.Embedding(1, self.embed), "pfedla", "embedding")
        return Params({"v": embedding.weight.detach()[0], **net.state_dict()})


def _mix(net: Params, client: int, models: Mapping[int, Params]) -> Params:
    """Eqs. (1) and (2), over the clients that have a model."""
    h = net["v"]
    for i in range(3):
        h = relu(linear(h, net[f"inner.{i}.weight"], net[f"inner.{i}.bias"]))
    known = [j for j in models if j < len(net["outer.0.bias"])]  # a client that joined later has no weight
    shares = dict[str, Tensor]()
    for i, layer in enumerate(dict.fromkeys(_layer(k) for k in models[client])):
        alpha = relu(linear(h, net[f"outer.{i}.weight"], net[f"outer.{i}.bias"]))[known]
        own = torch.tensor([float(j == client) for j in known])
        shares[layer] = alpha / alpha.sum() if alpha.any() else own

    def mix(name: str) -> Tensor:
        tensors = torch.stack([models[j][name] for j in known])
        if not tensors.is_floating_point():
            return models[client][name]
        return (shares[_layer(name)].view(-1, *[1] * (tensors.dim() - 1)) * tensors).sum(0)

    return Params({k: mix(k) for k in models[client]})


def _layer(name: str) -> str:
    return name.rpartition(".")[0]
