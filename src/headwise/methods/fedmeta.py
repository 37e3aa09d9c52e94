"""FedMeta — Chen et al., *Federated Meta-Learning with Fast Convergence and Efficient Communication*, 2018.
https://arxiv.org/abs/1802.07876

    paper       here       meaning
    theta       down.w     the learned initialization
    alpha       down.rate  rate of the inner step: one number or, with Meta-SGD, a learned one per parameter
    beta        meta_lr    learning rate of the server
    D_S, D_Q    -          a client's support and query set: a new random split of its samples in each round
    g_u         up.g       its meta-gradient: that of the loss on the query set after a step on the support set

Unlike in Per-FedAvg, a client splits all its samples into a support and a query set, and sends one meta-gradient per
round instead of a model trained for many steps; the server takes the step. So `train.lr`, `train.epochs` and
`train.batch` have no effect, and a run needs many more rounds.

Departs from the paper: the server takes a plain gradient step; the paper's experiments use Adam.

Read: its abstract and the code of others (https://github.com/ddayzzz/federated-meta, `trainers/fedmeta.py`), whose
server also uses Adam; its authors' code was not found. Numbers of the paper's sections, equations and algorithms are
from memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from headwise.authoring import (
    Central, Local, Method, Nothing, Params, Positive, Predictor, Range, Record, Reply, Share, SplitModel, Update,
    gradient, has_batchnorm, mean,
)  # fmt: skip


class Learner(Record):
    """The initialization and, with Meta-SGD, the learned rate of each parameter."""

    w: Params
    rate: Params | None


class Slope(Record):
    """A client's meta-gradients; BatchNorm statistics, where they travel, are values, not gradients."""

    g: Params
    rate: Params | None


@dataclass(frozen=True)
class FedMeta(Method[Learner, Nothing, Learner, Slope]):
    """The server learns an initialization, and optionally per-parameter rates, that adapt to a client in one step."""

    family = "meta-learning"
    travels = "whole model down, its meta-gradient up"
    optimizers = "own"
    stays = "nothing"
    traffic_down = "2 * P if algorithm == 'meta_sgd' else P"
    traffic_up = "2 * P if algorithm == 'meta_sgd' else P"
    sums = "clients"
    cost = 2

    algorithm: Literal["maml", "fomaml", "meta_sgd"] = "maml"
    """exact meta-gradient; without its second-order term; exact, with a learned rate per parameter"""
    inner_lr: Positive = 0.1
    """rate of the inner step; for meta_sgd, its initial value"""
    inner_steps: Annotated[int, Range(1, 1000)] = 1
    """inner steps on the support set, and on all samples before use"""
    meta_lr: Positive = 0.5
    """learning rate of the server"""
    support: Share = 0.5
    """share of a client's samples in the support set"""

    def server_init(self, central: Central) -> Learner:
        m = central.init()
        rates = m.live().map(lambda t: torch.full_like(t, self.inner_lr))
        return Learner(m.params(), rates if self.algorithm == "meta_sgd" else None)

    def aggregate(self, server: Learner, replies: Sequence[Reply[Slope]], central: Central) -> Learner:
        if not replies:
            return server
        g = mean(r.up.g for r in replies)
        learned = central.init().live()
        w = Params({k: t - self.meta_lr * g[k] if k in learned else g[k] for k, t in server.w.items()})
        slopes = [r.up.rate for r in replies if r.up.rate is not None]
        rate = server.rate if server.rate is None else server.rate - mean(slopes) * self.meta_lr
        return Learner(w, rate)  # Algorithm 1: (theta, alpha) <- (theta, alpha) - beta / m sum_u g_u

    def global_model(self, server: Learner, central: Central) -> SplitModel | None:
        return central.model(server.w)

    def local_update(self, me: Nothing, down: Learner, local: Local) -> Update[Slope, Nothing]:
        m = local.model(down.w)
        x, y = next(local.batches(1, train=(m,), size=local.n))  # all samples, in a random order
        least = 2 if has_batchnorm(m) else 1
        cut = min(max(int(self.support * len(y)), least), len(y) - least)
        S, Q = ((x[:cut], y[:cut]), (x[cut:], y[cut:])) if cut >= least else ((x, y), (x, y))

        def after(p: Params) -> Tensor:
            rate = p.strip_prefix("rate/") or self.inner_lr
            theta = self._take_step(p.strip_prefix("w/"), rate, lambda q: local.loss(m.given(q), *S))
            return local.loss(m.given(theta), *Q)

        both = m.live().add_prefix("w/") | (down.rate or Params()).add_prefix("rate/")
        slopes = gradient(after, both)  # Algorithm 1: g_u
        up = Slope(Params({**m.params(), **slopes.strip_prefix("w/")}), slopes.strip_prefix("rate/") or None)
        return Update(up, me, self._adapt(m, down, local), keep=m)

    def personalize(self, me: Nothing, down: Learner, local: Local) -> Predictor:
        return self._adapt(local.model(down.w), down, local)

    def join(self, me: Nothing, down: Learner, whole: Params | None, local: Local) -> Predictor:
        return self._adapt(local.model(down.w), down, local, epochs=max(1, round(local.epochs)))

    def _adapt(self, m: SplitModel, down: Learner, local: Local, epochs: int = 1) -> SplitModel:
        """The model after the inner steps on all samples of the client, taken once per epoch."""
        theta = m.live().map(lambda t: t.detach().clone().requires_grad_())
        for x, y in local.batches(epochs, train=(m,), size=local.n):
            theta = self._take_step(theta, down.rate or self.inner_lr, lambda p, x=x, y=y: local.loss(m.given(p), x, y))
            theta = theta.map(lambda t: t.detach().requires_grad_())
        return local.model(Params({**m.state(), **theta.map(Tensor.detach)}))

    def _take_step(self, theta: Params, rate: Params | float, loss: Callable[[Params], Tensor]) -> Params:
        """Algorithm 1: theta_u = theta - alpha grad L_S(theta); for fomaml the gradient is a constant."""
        for _ in range(self.inner_steps):
            slopes = torch.autograd.grad(loss(theta), list(theta.values()), create_graph=self.algorithm != "fomaml")
            theta = theta - Params(dict(zip(theta, slopes, strict=True))) * rate
        return theta
