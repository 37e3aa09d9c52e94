"""FedADMM — Gong, Li and Freris, *FedADMM: A Robust Federated Deep Learning Framework with Adaptivity to System
Heterogeneity*, ICDE 2022. https://arxiv.org/abs/2204.03529

    paper     here        meaning
    theta     down.w      the global model
    w_i, y_i  me.w, me.y  client i's model and its dual variable, at first 0
    rho       rho         weight of the proximal term
    eta       server_lr   step of the server
    Delta_i   up.d        what client i sends

    (1)  w_i <- argmin f_i(w) + <y_i, w - theta> + rho/2 ||w - theta||^2, by the round's epochs
    (2)  y_i <- y_i + rho (w_i - theta)
    (3)  Delta_i: the change of w_i + y_i / rho
    (4)  theta <- theta + eta mean of the round's Delta_i

As its authors' code (https://github.com/YonghaiGong/FedADMM, `update.py`, `federated_main.py`); the numbers are ours.
There, (1) starts from theta, and (3) takes theta for the old w_i, so that Delta_i = 2 (w_i - theta). `start = "own"`
continues from the client's own w_i and takes (3) as it stands; the server then keeps the mean of all w_i + y_i / rho if
all clients take part.

Departs from the code: every client runs the same number of epochs (there, at random fewer), and eta does not change.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from headwise.authoring import Central, GlobalModel, Local, Params, Positive, Record, Reply, Shared, Update, mean


class Own(Record):
    """A client's model and dual variable."""

    w: Params
    y: Params


class Change(Record):
    """The change of a client's model and scaled dual variable; values of BatchNorm statistics, where they travel."""

    d: Params


@dataclass(frozen=True)
class FedADMM(GlobalModel[Own, Change]):
    """One global model by the method of multipliers: a dual variable makes clients agree with it in the end."""

    family = "one global model"
    travels = "whole model"
    stays = "model and dual variable (their changes are sent)"
    uploaded_fields = ("w", "y")
    traffic_down = "P"
    traffic_up = "P"
    sums = "clients"
    cost = 1.1

    rho: Positive = 0.01
    """weight of the proximal term"""
    server_lr: Positive = 1.0
    """eta: step of the server"""
    start: Literal["global", "own"] = "global"
    """where local training starts: from the global model, or from the client's own"""

    def aggregate(self, server: Shared, replies: Sequence[Reply[Change]], central: Central) -> Shared:
        if not replies:
            return server
        d = mean(r.up.d for r in replies)
        trained = central.init().live()
        w = {k: t + self.server_lr * d[k] if k in trained else d[k] for k, t in server.w.items()}  # Eq. (4)
        return Shared(Params(w))

    def client_init(self, local: Local) -> Own:
        m = local.init()
        return Own(m.live().map(Tensor.detach), m.live().map(Tensor.detach).zeros())

    def local_update(self, me: Own, down: Shared, local: Local) -> Update[Change, Own]:
        theta = down.w.restrict(me.y)
        old = theta if self.start == "global" else me.w
        m = local.model(Params({**down.w, **old}))
        local.sgd(m, pull=(self.rho, theta), shift=me.y)  # Eq. (1)
        w = m.params().restrict(me.y)
        y = me.y + self.rho * (w - theta)  # Eq. (2)
        d = w - old + (y - me.y) / self.rho  # Eq. (3)
        return Update(Change(Params({**m.params(), **d})), Own(w, y), m)
