"""FedAS — Yang, Huang and Ye, *FedAS: Bridging Inconsistency in Personalized Federated Learning*, CVPR 2024.
https://openaccess.thecvf.com/content/CVPR2024/html/Yang_FedAS_Bridging_Inconsistency_in_Personalized_Federated_Learning_CVPR_2024_paper.html

    paper              here          meaning
    theta              down.w        the shared body
    theta_i, v_i       me.w, me.h    client i's last body, which it aligns to, and its head, which never leaves it
    P_i,c              target        prototype: mean feature of its samples of class c under its last body
    tr(F_i)            up.trace      trace of the Fisher information of its trained model: the server's weight

    (1)  theta <- theta - eta grad sum_c mean over the batch's samples x of class c of |theta(x) - P_i,c|^2 / K
    (2)  tr(F_i) = 1/n sum over its samples of |grad log p(y | x)|^2
    (3)  theta <- sum_i tr(F_i) theta_i / sum_i tr(F_i), over the round's clients

As its authors' code (https://github.com/xiyuanyang45/FedAS, `clientas.py`, `serveras.py`), with the abstract; the
numbers are ours. Departs from it: the code sums the squared norms of the gradients of batch means, which is (2) for
batches of one sample only, and counts larger clients more (`fedas@code`). It aligns in batches of 16, here in the
run's; its clients align one shared object in turn, here (and in PFLlib) each its own copy. A client that never trained
aligns to nothing, in the code to the initial body (`align_first`). A round whose traces are all 0 takes the plain mean.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.func import grad, vmap

from headwise.authoring import (
    Central, EpochsOrNone, Local, Method, NonNegative, Params, Predictor, Record, Reply, Shared, SplitModel, Update,
    gradient, mean,
)  # fmt: skip

CHUNK = 32  # samples whose gradients are in memory at once
LARGE = 100_000  # parameters from which gradients are taken one by one: together, they are slower than memory


class Own(Record):
    """A client's last body, once it has one, and its head."""

    w: Params | None
    h: Params


class Up(Record):
    """A client's body and the trace of its Fisher information."""

    w: Params
    trace: float


@dataclass(frozen=True)
class FedAS(Method[Shared, Own, Shared, Up]):
    """A shared body with personal heads: clients align the body to their last one, and count by their Fisher trace."""

    family = "shared body"
    tasks = ("classification",)
    travels = "body, Fisher trace up"
    stays = "head, last body (a copy is sent)"
    uploaded_fields = ("w",)
    traffic_down = "F"
    without_body = "alone"
    traffic_up = "F + 1"
    cost = 3
    presets = {"code": {"fisher": "batches", "align_first": True}}

    align_lr: NonNegative = 0.01
    """learning rate of the alignment; 0 starts from the body as it was sent"""
    align_epochs: EpochsOrNone = 1
    """epochs of the alignment"""
    align_first: bool = False
    """(code) align also in a client's first round, to the means of the initial body's features"""
    fisher: Literal["samples", "batches"] = "samples"
    """the trace is the mean over samples, or (code) a sum over the gradients of batch means"""

    def server_init(self, central: Central) -> Shared:
        return Shared(central.init().params("body"))

    def aggregate(self, server: Shared, replies: Sequence[Reply[Up]], central: Central) -> Shared:
        if not replies:
            return server
        traces = [r.up.trace for r in replies]
        return Shared(mean((r.up.w for r in replies), traces if sum(traces) > 0 else None))  # Eq. (3)

    def client_init(self, local: Local) -> Own:
        return Own(None, local.init().state("head"))

    def local_update(self, me: Own, down: Shared, local: Local) -> Update[Up, Own]:
        m = self._align(me, down, local)
        local.sgd(m)
        return Update(Up(m.params("body"), self._trace(m, local)), Own(m.state("body"), m.state("head")), m)

    def personalize(self, me: Own, down: Shared, local: Local) -> Predictor:
        return self._align(me, down, local)

    def _align(self, me: Own, down: Shared, local: Local) -> SplitModel:
        """The client's head on the shared body, whose features have moved towards those of its last one."""
        m = local.model(down.w | me.h)
        if not self.align_lr or (me.w is None and not self.align_first):
            return m
        last = local.init() if me.w is None else local.model(me.w | me.h)
        target = local.class_means(last.body).table(local.classes)

        def distance(x: Tensor, y: Tensor) -> Tensor:  # Eq. (1): every class of a batch counts the same
            share = y.bincount(minlength=local.classes)[y].reciprocal()
            return ((m.body(x) - target[y]).square().mean(1) * share).sum()

        local.sgd(m, only=m.body, epochs=self.align_epochs, lr=self.align_lr, loss=distance)
        return m

    def _trace(self, m: SplitModel, local: Local) -> float:
        """Eq. (2), in evaluation mode."""
        at = m.weights().map(Tensor.detach)

        def loss(w: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return local.loss(m.given(Params(w)), x, y)

        def of_one(w: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return Params(grad(loss)(w, x[None], y[None])).sq_norm()

        if self.fisher == "samples" and at.numel() < LARGE:
            x, y = next(local.batches(1, size=local.n))
            return float(vmap(of_one, in_dims=(None, 0, 0), chunk_size=CHUNK)(dict(at), x, y).mean())
        batches = local.batches(1, size=1 if self.fisher == "samples" else None)
        norms = [gradient(lambda w, x=x, y=y: loss(w, x, y), at).sq_norm() for x, y in batches]
        total = float(torch.stack(norms).sum()) if norms else 0.0
        return total / local.n if self.fisher == "samples" else total
