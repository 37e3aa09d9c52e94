"""FedNova — Wang et al., *Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization*,
NeurIPS 2020. https://arxiv.org/abs/2007.07481

    paper      here       meaning
    x          down.w     the global model
    |a_i|_1    up.a       how far client i would move along a constant gradient of one, in steps; with plain SGD, its
                          number of steps
    d_i        -          its normalized change (x - x_i) / (eta |a_i|_1)
    p_i        Reply.n    its share of the round's samples
    tau_eff    tau_eff    effective steps, sum_i p_i |a_i|_1

The paper gives |a_i|_1 for each optimizer (Section 4.1). Here it is measured: a number whose gradient is always one is
trained along with the model and moves by -eta |a_i|_1, whatever the momentum and weight decay.

Departs from the paper: clients send x_i and |a_i|_1, from which the server computes d_i. Clients that took no step have
no direction and are left out. BatchNorm statistics, where they travel, are averaged as in FedAvg.

Read: its abstract and its authors' code (https://github.com/JYWa/FedNova, `distoptim/FedNova.py`), whose |a_i|_1 is the
same for SGD with momentum. Numbers of the paper's sections, equations and algorithms are from memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headwise.authoring import Central, GlobalModel, Local, Nothing, Params, Record, Reply, Shared, Update, mean


class Trained(Record):
    """A client's model and the steps it took, as its optimizer weights them."""

    w: Params
    a: float


@dataclass(frozen=True)
class FedNova(GlobalModel[Nothing, Trained]):
    """FedAvg in which clients count by their data, not by how many steps they took."""

    family = "one global model"
    travels = "whole model, number of steps up"
    optimizers = "sgd"
    stays = "nothing"
    traffic_down = "P"
    traffic_up = "P + 1"

    def aggregate(self, server: Shared, replies: Sequence[Reply[Trained]], central: Central) -> Shared:
        moved = [r for r in replies if r.up.a > 0]
        if not moved:
            return server
        n = [r.n for r in moved]
        x = server.w.restrict(central.init().live())
        d = mean(((x - r.up.w.restrict(x)) / r.up.a for r in moved), n)  # sum_i p_i eta d_i
        tau_eff = sum(r.n / sum(n) * r.up.a for r in moved)  # Section 5, the default
        averaged = mean((r.up.w for r in moved), n)
        return Shared(Params({**averaged, **(x - tau_eff * d)}))  # Eq. (4) with w_i = p_i

    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Trained, Nothing]:
        m = local.model(down.w)
        a = local.distance(local.sgd(m)) / local.lr  # Section 4.1: |a_i|_1
        return Update(Trained(m.params(), a), me, m)
