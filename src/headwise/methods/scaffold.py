"""SCAFFOLD — Karimireddy et al., *SCAFFOLD: Stochastic Controlled Averaging for Federated Learning*, ICML 2020.
https://arxiv.org/abs/1910.06378

    paper     here        meaning
    x, c      down        the global model and the mean control variate of all clients
    y_i       m           client i's copy of the model
    c_i       me.c        its control variate: its mean gradient over the local steps (option II)
    eta_g     server_lr   learning rate of the server
    K eta_l   travelled   how far a constant gradient of one would have moved y_i, momentum included

Departs from the paper: clients send y_i instead of its change, which is equivalent. A client that took no step keeps
its control variate.

Read: its abstract, PFLlib's and FL-bench's files; its authors' code was not found, and option II is from memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.authoring import Central, Local, Method, Params, Positive, Record, Reply, SplitModel, Update, mean


class Global(Record):
    """The global model and control variate."""

    w: Params
    c: Params


class Trained(Record):
    """A client's model and the change of its control variate."""

    w: Params
    dc: Params


class Control(Record):
    """A client's control variate."""

    c: Params


@dataclass(frozen=True)
class Scaffold(Method[Global, Control, Global, Trained]):
    """One global model; clients correct each step for how their gradients differ from the average."""

    family = "one global model"
    travels = "whole model, control variates"
    optimizers = "sgd"
    stays = "control variate (its changes are sent)"
    uploaded_fields = ("c",)
    traffic_down = "2 * P"
    traffic_up = "2 * P"
    sums = "clients"
    cost = 1.1

    server_lr: Positive = 1.0
    """learning rate of the server: 1 takes the clients' plain mean"""

    def server_init(self, central: Central) -> Global:
        m = central.init()
        return Global(m.params(), _make_zeros(m))

    def aggregate(self, server: Global, replies: Sequence[Reply[Trained]], central: Central) -> Global:
        if not replies:
            return server
        average = mean(r.up.w for r in replies)  # line 16: every client counts the same
        x = server.w.zip(average, lambda w, y: w + self.server_lr * (y - w) if w.is_floating_point() else y)
        c = server.c + mean(r.up.dc for r in replies) * (len(replies) / len(central.clients))
        return Global(x, c)  # Algorithm 1, line 17

    def global_model(self, server: Global, central: Central) -> SplitModel | None:
        return central.model(server.w)

    def client_init(self, local: Local) -> Control:
        return Control(_make_zeros(local.init()))

    def local_update(self, me: Control, down: Global, local: Local) -> Update[Trained, Control]:
        m = local.model(down.w)
        correction = down.c - me.c
        travelled = local.distance(local.sgd(m, shift=correction))  # Algorithm 1, line 10: g_i(y_i) - c_i + c
        y = m.params()
        moved = down.w.restrict(correction) - y.restrict(correction)
        dc = moved / travelled - down.c if travelled else correction.zeros()  # line 12, option II
        return Update(Trained(y, dc), Control(me.c + dc), m)


def _make_zeros(m: SplitModel) -> Params:
    """Zero control variates, for all parameters that travel and are trained."""
    return m.live().map(torch.zeros_like).map(Tensor.detach)
