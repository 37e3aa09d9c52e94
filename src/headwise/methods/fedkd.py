"""FedKD — Wu et al., *Communication-efficient federated learning via knowledge distillation*, Nature Communications
2022. https://arxiv.org/abs/2108.13323

    paper             here           meaning
    mentor            me.w           a client's large model; it never leaves the client
    mentee            w_g            the small model whose changes travel, of the server's architecture
    W^h               me.W           maps the mentee's features to the mentor's
    U, Sigma, V       U, sigma, V    factors of a matrix's change that keep a share T(t) of its energy, T_start to T_end

Departs from the paper: a client is sent the mentee's change since the common start, not since the last round, which it
may have missed; a matrix travels as it is where that is smaller than its factors. Each model learns from its own loss
alone, and the sum of task losses is a weight, no part of the gradient. All gradients are clipped together, as public
code clips each model's. The mentor starts under a head of its own draw, or the first upload would tell its biases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, mse_loss

from ..contract.method import Bench, Central, Local, Method, Predictor, Reply, Update
from ..params import Params, mean
from ..records import Record
from ..settings.fields import Positive, Share


class Own(Record):
    """A client's mentor, and the map to its features."""

    w: Params
    W: Tensor


class Change(Record):
    """A change of the mentee: a matrix by its factors where they are smaller than it, all else as it is."""

    U: Params
    sigma: Params
    V: Params
    rest: Params


@dataclass(frozen=True)
class FedKD(Method[Change, Own, Change, Change]):
    """A model of one's own and a shared one teach each other, the more the better they are; one travels, compressed."""

    family: ClassVar[str] = "mutual distillation"
    travels: ClassVar[str] = "changes of a second model, factorized"
    stays: ClassVar[str] = "whole model"
    down: ClassVar[str] = "?"
    up: ClassVar[str] = "?"
    cost: ClassVar[float] = 2
    heterogeneous: ClassVar[Literal["no", "same head", "any"]] = "any"

    energy_start: Share = 0.95
    """share of the energy of a change that its factors keep before the first round"""
    energy_end: Share = 0.98
    """the same in the last round; 1 and 1: nothing is lost"""
    distill: bool = True
    """whether the two models learn from each other at all"""
    clip: Positive = 10.0
    """largest norm of the gradient of both models together"""

    def server_init(self, central: Central) -> Change:
        return self._factorized(central.init(common=True).params().zeros(), central)

    def broadcast(self, server: Change, client: int, central: Central) -> Change:
        return server

    def aggregate(self, server: Change, replies: Sequence[Reply[Change]], central: Central) -> Change:
        if not replies:
            return server
        like = central.init(common=True).params()
        change = _restored(server, like) + mean(_restored(r.up, like) for r in replies)  # Algorithm 1
        return self._factorized(change, central)

    def client_init(self, local: Local) -> Own:
        own, K = local.model(local.random_head("fedkd")), local.init(common=True).width
        W = local.draw(lambda: nn.Linear(K, own.width, bias=False), "fedkd")
        return Own(own.state(), W.weight.detach())

    def local_update(self, me: Own, down: Change, local: Local) -> Update[Change, Own]:
        w_0 = local.init(common=True).params()
        w_g = w_0 + _restored(down, w_0)
        own, mentee = local.model(me.w), local.model(w_g, common=True)
        W = local.draw(lambda: nn.Linear(mentee.width, own.width, bias=False))
        W.load_state_dict({"weight": me.W})

        def loss(x: Tensor, y: Tensor) -> Tensor:
            f, f_g = own.body(x), mentee.body(x)
            z, z_g = own.head(f), mentee.head(f_g)
            task = cross_entropy(z, y) + cross_entropy(z_g, y)
            mutual = _kl(z_g.detach(), z) + _kl(z.detach(), z_g) + mse_loss(f, W(f_g))  # both have the hidden loss
            return task + mutual / task.detach().clamp(min=1e-6) if self.distill else task

        local.sgd(own, mentee, W, loss=loss, clip=self.clip)
        change = mentee.params() - w_g
        return Update(self._factorized(change, local), Own(own.state(), W.weight.detach()), own, keep=mentee)

    def personalize(self, me: Own, down: Change, local: Local) -> Predictor:
        return local.model(me.w)

    def _factorized(self, w: Params, bench: Bench) -> Change:
        share = self.energy_start + (self.energy_end - self.energy_start) * bench.t / bench.T  # T(t), Algorithm 1
        factors = {k: _svd(t.flatten(1), share) for k, t in w.items() if t.ndim > 1}
        smaller = {k: f for k, f in factors.items() if sum(map(Tensor.numel, f)) < w[k].numel()}
        U, sigma, V = (Params({k: f[i] for k, f in smaller.items()}) for i in range(3))
        return Change(U, sigma, V, Params({k: t for k, t in w.items() if k not in smaller}))


def _svd(t: Tensor, share: float) -> tuple[Tensor, Tensor, Tensor]:
    """The fewest singular values, and their vectors, whose squares make up this share of all squares."""
    svd = torch.linalg.svd(t, full_matrices=False)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    U, sigma, V = cast(tuple[Tensor, Tensor, Tensor], svd)
    energy = sigma.square().cumsum(0)
    rank = min(int((energy < share * energy[-1]).sum()) + 1, len(sigma))
    return U[:, :rank].contiguous(), sigma[:rank], V[:rank].contiguous()


def _restored(change: Change, like: Params) -> Params:
    whole = Params({k: U * change.sigma[k] @ change.V[k] for k, U in change.U.items()}) | change.rest
    return Params({k: whole[k].view_as(t) for k, t in like.items()})


def _kl(teacher: Tensor, student: Tensor) -> Tensor:
    return kl_div(log_softmax(student, 1), log_softmax(teacher, 1), reduction="batchmean", log_target=True)
