"""FedDyn — Acar et al., *Federated Learning Based on Dynamic Regularization*, ICLR 2021.
https://arxiv.org/abs/2111.04263

    paper             here      meaning
    theta^t           down.w    the global model
    grad L_k(theta_k) me.g      client k's gradient at its last model, by the first-order condition; at first 0
    h^t               server.h  the mean of these gradients over all m clients, at first 0
    alpha             alpha     weight of the dynamic regularizer

    (1)  theta_k <- argmin L_k(theta) - <g_k, theta> + alpha/2 ||theta - theta^{t-1}||^2
    (2)  g_k <- g_k - alpha (theta_k - theta^{t-1})
    (3)  h <- h - alpha/m sum_k (theta_k - theta^{t-1}), over the round's clients
    (4)  theta^t <- mean of the round's theta_k - h / alpha

(The numbers are ours.) Departs from the paper: (1) is lowered by the round's epochs, not solved. Clients send
theta_k - theta^{t-1}. The authors' code (https://github.com/alpemreacar/FedDyn) divides alpha by a client's share of
the samples and clips gradients at a norm of 10, for which `train.clip` exists; PFLlib takes the norm without the
square in (1). BatchNorm statistics, where they travel, are averaged as in FedAvg, with equal weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from headwise.authoring import Central, Local, Method, Params, Positive, Record, Reply, Shared, SplitModel, Update, mean


class Server(Record):
    """The global model and the mean gradient of all clients."""

    w: Params
    h: Params


class Own(Record):
    """A client's gradient at its last model."""

    g: Params


class Change(Record):
    """How far a client's training moved the model."""

    d: Params


@dataclass(frozen=True)
class FedDyn(Method[Server, Own, Shared, Change]):
    """One global model; each client's loss is changed so that its optimum agrees with that of all clients."""

    family = "one global model"
    travels = "whole model"
    stays = "sum of its changes (which are sent)"
    uploaded_fields = ("g",)
    traffic_down = "P"
    traffic_up = "P"
    sums = "clients"
    cost = 1.1

    alpha: Positive = 0.1
    """weight of the dynamic regularizer"""

    def server_init(self, central: Central) -> Server:
        m = central.init()
        return Server(m.params(), _zeros(m))

    def broadcast(self, server: Server, client: int, central: Central) -> Shared:
        return Shared(server.w)

    def aggregate(self, server: Server, replies: Sequence[Reply[Change]], central: Central) -> Server:
        if not replies:
            return server
        d = mean(r.up.d for r in replies)
        h = server.h - d.restrict(server.h) * (self.alpha * len(replies) / len(central.clients))  # Eq. (3)
        trained = (server.w + d).restrict(server.h) - h / self.alpha  # Eq. (4)
        return Server(Params({**(server.w + d), **trained}), h)

    def global_model(self, server: Server, central: Central) -> SplitModel | None:
        return central.model(server.w)

    def client_init(self, local: Local) -> Own:
        return Own(_zeros(local.init()))

    def local_update(self, me: Own, down: Shared, local: Local) -> Update[Change, Own]:
        m = local.model(down.w)
        local.sgd(m, pull=(self.alpha, down.w.restrict(me.g)), shift=-1 * me.g)  # Eq. (1)
        d = m.params() - down.w
        return Update(Change(d), Own(me.g - self.alpha * d.restrict(me.g)), m)  # Eq. (2)


def _zeros(m: SplitModel) -> Params:
    """Of all parameters that travel and are trained."""
    return m.live().map(Tensor.detach).zeros()
