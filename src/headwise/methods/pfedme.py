"""pFedMe — Dinh, Tran and Nguyen, *Personalized Federated Learning with Moreau Envelopes*, NeurIPS 2020.
https://arxiv.org/abs/2006.08848

    paper      here          meaning
    w          down.w        the global model
    w_i        w             client i's copy of it, which is sent back
    theta_i    me.theta      its personal model, which is evaluated; None until it first takes part
    lambda     lam           how strongly theta_i is pulled towards w_i
    K          K             steps on theta_i per batch, to solve its problem approximately
    R          train.epochs  local rounds: here, all batches of these epochs
    eta        train.lr      learning rate of w_i; eta times lambda should be below 2
    beta       server_lr     server mixing: w <- (1 - beta) w + beta mean(w_i)

Departs from the paper: the server weights the w_i by samples, as the authors' code does; Algorithm 1 takes the plain
mean (`pfedme@paper`). All steps are plain gradient descent: `train.momentum` and `train.weight_decay` have no effect.

Read: its abstract, its authors' code (https://github.com/CharlieDinh/pFedMe), PFLlib's and FL-bench's files. Numbers of
the paper's sections, equations and algorithms are from memory.
"""

from dataclasses import dataclass

from torch import Tensor

from headwise.authoring import (
    Averaging, Count, Local, NonNegative, Params, Positive, Predictor, Record, Shared, SplitModel, Update, gradient,
    step,
)  # fmt: skip


class Personal(Record):
    """A client's personal model."""

    theta: Params | None


@dataclass(frozen=True)
class PFedMe(Averaging[Personal]):
    """A personal model pulled towards the global one, which in turn follows the personal models."""

    family = "global and own model"
    travels = "whole model"
    optimizers = "own"
    stays = "own model"
    cost = 5
    presets = {"paper": {"weights": "clients"}}

    lam: NonNegative = 15.0
    """pull of the personal model towards the client's copy of the global one; 0: the global model never moves"""
    K: Count = 5
    """steps on the personal model per batch"""
    personal_lr: Positive = 0.01
    """learning rate of the personal model"""

    def client_init(self, local: Local) -> Personal:
        return Personal(None)

    def local_update(self, me: Personal, down: Shared, local: Local) -> Update[Shared, Personal]:
        m = local.model(down.w)
        theta = w = m.weights().map(Tensor.detach)
        for x, y in local.batches(train=(m,)):
            theta = self._solve(theta, w, m, local, x, y)
            w = w - (w - theta) * (local.lr * self.lam)  # Algorithm 1: w_i <- w_i - eta lambda (w_i - theta_i)
        own = local.model(Params({**m.state(), **theta}))
        copy = local.model(Params({**m.state(), **w}))
        return Update(Shared(copy.params()), Personal(own.state()), own, keep=copy)

    def personalize(self, me: Personal, down: Shared, local: Local) -> Predictor:
        return local.model(down.w if me.theta is None else me.theta)

    def _solve(self, theta: Params, w: Params, m: SplitModel, local: Local, x: Tensor, y: Tensor) -> Params:
        """K steps towards the theta that minimizes f_i(theta) + lambda/2 ||theta - w_i||^2 on this batch."""

        def h(p: Params) -> Tensor:
            return local.loss(m.given(p), x, y) + self.lam / 2 * (p - w).sq_norm()

        for _ in range(self.K):
            theta = step(theta, gradient(h, theta), self.personal_lr)
        return theta
