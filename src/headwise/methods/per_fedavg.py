"""Per-FedAvg — Fallah, Mokhtari and Ozdaglar, *Personalized Federated Learning with Theoretical Guarantees: A
Model-Agnostic Meta-Learning Approach*, NeurIPS 2020. https://arxiv.org/abs/2002.07948

    paper    here       meaning
    w        down.w     the meta-model: a start from which one step on a client's own data gives a good model
    alpha    alpha      learning rate of that step
    beta     train.lr   learning rate of the meta-model
    D, D'    b1, b2     independent batches for the step and for the loss after it
    tau      -          local updates per round: as many as FedAvg takes in `train.epochs`

Departs from the paper: the server weights clients by samples, Algorithm 1 takes the plain mean (`per-fedavg@paper`). D
and D' are halves of a batch of twice the usual size, so an epoch is two passes over the data. The exact form takes the
Hessian on D, not on a third batch. A batch too small to split is used for an ordinary step. All steps are plain
gradient descent: `train.momentum` and `train.weight_decay` have no effect.

Read: its abstract, PFLlib's and FL-bench's files, and pFedMe's authors' code (https://github.com/CharlieDinh/pFedMe);
its authors' code was not found, and Algorithm 1 is from memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from headwise.authoring import (
    Averaging, Local, NonNegative, Nothing, Params, Predictor, Shared, SplitModel, Update, gradient, has_batchnorm,
    split_epochs, step,
)  # fmt: skip


@dataclass(frozen=True)
class PerFedAvg(Averaging[Nothing]):
    """One initialization for all, from which a single step on a client's data gives its personal model."""

    family = "meta-learning"
    travels = "whole model"
    optimizers = "own"
    stays = "nothing"
    cost = 2
    presets = {"paper": {"weights": "clients"}}

    alpha: NonNegative | Literal["local"] = "local"
    """learning rate of the personal step; local: the model's"""
    hessian: Literal["first_order", "exact"] = "first_order"
    """the meta-gradient: without its second-order term, or exact, through the personal step"""

    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Shared, Nothing]:
        m = local.model(down.w)
        w = m.weights().map(Tensor.detach)
        for part in split_epochs(2 * local.epochs):
            for x, y in _join_pairs(local.batches(part, train=(m,))):
                w = step(w, self._slope(w, m, local, x, y), local.lr)  # Algorithm 1: w <- w - beta grad F_i(w)
        m = local.model(Params({**m.state(), **w}))
        return Update(Shared(m.params()), me, self._adapt(m, local), keep=m)

    def personalize(self, me: Nothing, down: Shared, local: Local) -> Predictor:
        return self._adapt(local.model(down.w), local)

    def join(self, me: Nothing, down: Shared, whole: Params | None, local: Local) -> Predictor:
        m = local.model(down.w)
        if not local.epochs:
            return self._adapt(m, local)
        local.sgd(m, lr=self._rate(local))  # more of the same steps
        return m

    def _adapt(self, m: SplitModel, local: Local) -> SplitModel:
        """A copy after one step on one batch of the client's own data."""
        w = m.weights().map(Tensor.detach)
        for x, y in local.batches(1, train=(m,)):
            w = step(w, gradient(lambda p, x=x, y=y: local.loss(m.given(p), x, y), w), self._rate(local))
            break
        return local.model(Params({**m.state(), **w}))

    def _rate(self, local: Local) -> float:
        return local.lr if self.alpha == "local" else self.alpha

    def _slope(self, w: Params, m: SplitModel, local: Local, x: Tensor, y: Tensor) -> Params:
        """The gradient of F_i(w) = f_i(w - alpha grad f_i(w; b1); b2), where the two batches are halves of this one."""
        if len(y) < (4 if has_batchnorm(m) else 2):
            return gradient(lambda p: local.loss(m.given(p), x, y), w)
        half = len(y) // 2

        def inner(p: Params) -> Tensor:
            return local.loss(m.given(p), x[:half], y[:half])

        def outer(p: Params) -> Tensor:
            return local.loss(m.given(p), x[half:], y[half:])

        if self.hessian == "first_order":
            return gradient(outer, step(w, gradient(inner, w), self._rate(local)))

        def through(p: Params) -> Tensor:
            slopes = torch.autograd.grad(inner(p), list(p.values()), create_graph=True)
            return outer(p - Params(dict(zip(p, slopes, strict=True))) * self._rate(local))

        return gradient(through, w)  # (I - alpha Hessian) grad f_i(w'; b2)


def _join_pairs(batches: Iterator[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of twice the size: each joined with the next, if there is one."""
    for x, y in batches:
        x_next, y_next = next(batches, (x[:0], y[:0]))
        yield torch.cat([x, x_next]), torch.cat([y, y_next])
