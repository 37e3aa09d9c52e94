"""FedKD — Wu et al., *Communication-efficient federated learning via knowledge distillation*, Nature Communications
2022. https://arxiv.org/abs/2108.13323

    paper             here           meaning
    mentor            me.w           a client's large model; it never leaves the client
    mentee            w_g            the small model whose changes travel, of the server's architecture
    W^h               me.W           maps the mentee's features to the mentor's
    U, Sigma, V       U, sigma, V    factors of a matrix's change that keep a share T(t) of its energy, T_start to T_end

Departs from the paper: a round's mean change is sent, as factors, only to clients that took part in that round; the
others have missed changes and are sent the sum of all of them, with all of its energy. A matrix travels whole where
that is smaller than its factors. Both models' gradients are clipped together; public code clips each model's. The
mentor starts with its own random head; otherwise the first upload would reveal its biases.

Read: its abstract, its authors' code (https://github.com/wuch15/FedKD) and PFLlib's file. Numbers of the paper's
sections, equations and algorithms are from memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from headwise.authoring import (
    Bench, Central, Local, Method, Params, Positive, Predictor, Record, Reply, Share, Update, mean,
)  # fmt: skip

TINY = 1e-6  # keeps the losses finite once both models fit a batch perfectly


class Change(Record):
    """A change of the mentee: U, sigma and V of each matrix where they are smaller; everything else whole."""

    w: Params


class Server(Record):
    """The last round's change, who took part in it, and the sum of all rounds' changes."""

    last: Params
    took_part: Tensor
    """[N]"""
    total: Params


class Down(Record):
    """The mentee's change since the client's last download or, if `total`, since the common start."""

    w: Params
    total: bool


class Own(Record):
    """A client's mentor, the map to its features, and the mentee as last downloaded."""

    w: Params
    W: Tensor
    w_g: Params


@dataclass(frozen=True)
class FedKD(Method[Server, Own, Down, Change]):
    """A private and a shared model teach each other, the better they are the more; only one travels, compressed."""

    family = "mutual distillation"
    tasks = ("classification", "multilabel", "regression")
    travels = "changes of a second model, factorized"
    stays = "whole model"
    traffic_down = "?"
    traffic_up = "?"
    fixed_layout = False  # factors of as many singular values as the energy needs
    cost = 2
    heterogeneous = "any"

    energy_start: Share = 0.95
    """share of a change's energy that its factors keep, before the first round"""
    energy_end: Share = 0.98
    """the same in the last round; if both are 1, nothing is lost"""
    distill: bool = True
    """let the two models learn from each other"""
    clip: Positive = 10.0
    """largest norm of the gradient of both models together"""

    def server_init(self, central: Central) -> Server:
        nothing = _factorize(central.init(common=True).params().zeros(), 1)
        return Server(nothing, torch.zeros(central.N) > 0, nothing)

    def broadcast(self, server: Server, client: int, central: Central) -> Down:
        return Down(server.last, False) if server.took_part[client : client + 1].any() else Down(server.total, True)

    def aggregate(self, server: Server, replies: Sequence[Reply[Change]], central: Central) -> Server:
        if not replies:
            return server
        like = central.init(common=True).params()
        took_part = torch.zeros(central.N) > 0
        took_part[[r.client for r in replies]] = True
        last = _factorize(mean(_restore(r.up.w, like) for r in replies), self._energy(central))  # Algorithm 1
        total = _restore(server.total, like) + _restore(last, like)
        return Server(last, took_part, _factorize(total, 1))

    def client_init(self, local: Local) -> Own:
        own = local.model(local.random_head("fedkd"))
        start = local.init(common=True)
        W = local.draw(lambda: nn.Linear(start.width, own.width, bias=False), "fedkd")
        return Own(own.state(), W.weight.detach(), start.params())

    def local_update(self, me: Own, down: Down, local: Local) -> Update[Change, Own]:
        before = local.init(common=True).params() if down.total else me.w_g
        w_g = before + _restore(down.w, before)
        own, mentee = local.model(me.w), local.model(w_g, common=True)
        W = local.draw(lambda: nn.Linear(mentee.width, own.width, bias=False))
        W.load_state_dict({"weight": me.W})

        def loss(x: Tensor, y: Tensor) -> Tensor:
            f, f_g = own.body(x), mentee.body(x)
            z, z_g = own.head(f), mentee.head(f_g)
            ce, ce_g = local.loss_of(z, y), local.loss_of(z_g, y)
            if not self.distill:
                return ce + ce_g
            mine = local.divergence(z_g.detach(), z) + mse_loss(f, W(f_g.detach()))
            mine = mine / (ce + ce_g.detach()).clamp(min=TINY)
            theirs = local.divergence(z.detach(), z_g) + mse_loss(f.detach(), W(f_g))
            theirs = theirs / (ce.detach() + ce_g).clamp(min=TINY)
            return ce + mine + ce_g + theirs  # each model learns from its own loss, W^h from both

        local.sgd(own, mentee, W, loss=loss, clip=self.clip)
        change = _factorize(mentee.params() - w_g, self._energy(local))
        return Update(Change(change), Own(own.state(), W.weight.detach(), w_g), own, keep=mentee)

    def personalize(self, me: Own, down: Down, local: Local) -> Predictor:
        return local.model(me.w)

    def _energy(self, bench: Bench) -> float:
        """T(t), Algorithm 1."""
        return self.energy_start + (self.energy_end - self.energy_start) * bench.t / bench.T


def _factorize(w: Params, energy: float) -> Params:
    factors = {k: _svd(t.flatten(1), energy) for k, t in w.items() if t.ndim > 1}
    smaller = {k: f for k, f in factors.items() if sum(map(Tensor.numel, f)) < w[k].numel()}
    named = {f"{name}/{k}": f[i] for i, name in enumerate(("U", "sigma", "V")) for k, f in smaller.items()}
    return Params({**named, **{f"whole/{k}": t for k, t in w.items() if k not in smaller}})


def _svd(t: Tensor, share: float) -> tuple[Tensor, Tensor, Tensor]:
    """The fewest singular values, with their vectors, whose squares sum to this share of the total."""
    svd = torch.linalg.svd(t, full_matrices=False)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    U, sigma, V = cast(tuple[Tensor, Tensor, Tensor], svd)
    energy = sigma.square().cumsum(0)
    rank = min(int((energy < share * energy[-1]).sum()) + 1, len(sigma))
    return U[:, :rank].contiguous(), sigma[:rank], V[:rank].contiguous()


def _restore(change: Params, like: Params) -> Params:
    def matrix(k: str) -> Tensor:
        return change[f"U/{k}"] * change[f"sigma/{k}"] @ change[f"V/{k}"]

    whole = {k: change[f"whole/{k}"] if f"whole/{k}" in change else matrix(k) for k in like}
    return Params({k: t.view_as(like[k]) for k, t in whole.items()})
