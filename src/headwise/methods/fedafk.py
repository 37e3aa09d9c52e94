"""FedAFK — Yin and Mao, *Personalized Federated Learning with Adaptive Feature Aggregation and Knowledge Transfer*,
2024. https://arxiv.org/abs/2410.15073

    paper      here       meaning
    theta_G    down.w     global feature extractor, trained by each client under a fixed random head
    theta_i    me.theta   client i's own feature extractor
    phi_i      me.phi     its own head
    phi_rd     random     the fixed random head, the same for all clients
    mu_i       me.mu      how much of theta_i stays when theta_G is mixed in
    lambda     lam        weight of knowledge transfer

Departs from the paper, which leaves these open: a softmax turns features into the distributions that Eq. (8) needs; mu
is clipped to [0, 1]; Eq. (6) differentiates a loss that does not contain mu, so its gradient is taken along
theta_i - theta_G (`chain`) or through the mixture (`exact`). Algorithm 1 and Section 4.3 order the steps differently,
and Eq. (5) prints the received theta_G^{t-1} where Section 4.3 has the trained one: `order` and `target` choose.
Line 11 may mean one step of mu per batch or per epoch: `mu_step` chooses.
Momentum and weight decay, if set, apply to the head and the bodies (momentum restarts in each pass, because mixing
overwrites theta_i), never to mu.

Read: the paper; no public code was found.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from headwise.authoring import (
    Averaged, Averaging, Central, EpochsOrNone, Local, Params, Predictor, Record, Shared, SplitModel, Unit, Update,
    differentiate_along, join_by_training, kl, split_epochs,
)  # fmt: skip

Loss = Callable[[Params, Tensor, Tensor], Tensor]


class Own(Record):
    """A client's body, its head and its mixing coefficient."""

    theta: Params
    phi: Params
    mu: Tensor


@dataclass(frozen=True)
class FedAFK(Averaging[Own]):
    """A personal body that learns from the global one by imitation, and is mixed with it by a learned coefficient."""

    family = "mixed body"
    tasks = ("classification", "multilabel", "regression")
    travels = "body"
    stays = "whole model"
    uploaded_fields = ("theta",)  # once mu reaches 0, it is a copy of the global body
    without_body = "fails"
    traffic_down = "F + L * global_head"
    cost = 2.4
    shows = {"me.mu": "client"}

    lam: Unit = 0.3
    """weight of knowledge transfer against the supervised loss; 0 disables it"""
    mu: Unit = 0.5
    """initial mixing coefficient: 1 keeps the client's own body, 0 takes the global one"""
    mix: Literal["epoch", "batch", "never"] = "epoch"
    """when the bodies are mixed; never disables adaptive feature aggregation"""
    mu_grad: Literal["chain", "exact"] = "chain"
    """gradient of mu: along the difference of the bodies, or through their mixture (one more pass)"""
    kl: Literal["local_global", "global_local"] = "local_global"
    """direction of the divergence between the bodies' features"""
    mu_step: Literal["batch", "epoch"] = "batch"
    """step mu after each batch, or once per epoch along the mean of the batches' gradients"""
    order: Literal["joint", "sequential"] = "joint"
    """in an epoch, update everything on each batch, or make one pass each for the global body, the own body and mu"""
    target: Literal["trained", "received"] = "trained"
    """the global body whose features are imitated: the one in training, or a frozen copy of the one received"""
    random_head: Literal["shared", "per_client"] = "shared"
    """one fixed random head for all clients, or one per client"""
    global_head: bool = False
    """train and send a global head with the global body instead, which gives a global model"""
    head_epochs: EpochsOrNone = 1
    """epochs on the own head, with the body frozen, at the end of a round"""

    def shared(self, central: Central) -> Params:
        return central.init().params("" if self.global_head else "body")  # their mean: Algorithm 1, line 16

    def global_model(self, server: Averaged, central: Central) -> SplitModel | None:
        return central.model(server.w) if self.global_head else None

    def client_init(self, local: Local) -> Own:
        m = local.init()
        return Own(m.state("body"), m.state("head"), torch.tensor(self.mu))

    def local_update(self, me: Own, down: Shared, local: Local) -> Update[Shared, Own]:
        own = local.model(me.theta | me.phi)
        global_model = local.model(down.w if self.global_head else down.w | self._random(local))
        received = local.freeze(local.model(global_model.state()).body) if self.target == "received" else None
        theta_G = global_model.weights("" if self.global_head else "body")
        now = theta_G.add_prefix("G/") | own.weights("body").add_prefix("i/") | Params(mu=me.mu)

        def loss(p: Params, x: Tensor, y: Tensor) -> Tensor:
            return self._loss(p, own, global_model, received, local, x, y)

        at_once = [("", (own.body, global_model.body))]
        in_turn = [("G/", (global_model.body,)), ("i/", (own.body,)), ("mu", ())]
        for epochs in split_epochs(local.epochs):
            for part, train in at_once if self.order == "joint" else in_turn:  # lines 9-11; Section 4.3, (2)-(4)
                now = self._learn(now, part, train, loss, local, epochs)
            now = self._mix(now, self.mix == "epoch")  # line 12
        own = _renew(own, now.strip_prefix("i/"), local)
        global_model = _renew(global_model, now.strip_prefix("G/"), local)
        local.sgd(own, only=own.head, epochs=self.head_epochs)  # Eq. (7)
        up = Shared(global_model.params("" if self.global_head else "body"))
        return Update(up, Own(own.state("body"), own.state("head"), now["mu"]), own, keep=global_model)

    def personalize(self, me: Own, down: Shared, local: Local) -> Predictor:
        return local.model(me.theta | me.phi)

    def join(self, me: Own, down: Shared, whole: Params | None, local: Local) -> Predictor:
        m = local.model(down.w if self.global_head else down.w | self._random(local))  # the head that theta_G knows
        return join_by_training(self, Own(m.state("body"), m.state("head"), me.mu), down, local)

    def _random(self, local: Local) -> Params:
        return local.random_head("fedafk", *([local.client] if self.random_head == "per_client" else []))

    def _learn(
        self, now: Params, part: str, train: Sequence[nn.Module], loss: Loss, local: Local, epochs: float
    ) -> Params:
        """A pass over the data on the entries named `part...`; mixing after each batch may change others."""
        rest = {k: t for k, t in now.items() if not k.startswith(part)}
        moves: list[Tensor] = []  # of mu, one for each batch

        def project(p: Params) -> Params:
            whole = {**rest, **p}
            if self.mu_step == "epoch" and "mu" in p:
                moves.append(whole["mu"] - now["mu"])
                whole["mu"] = now["mu"]
            mixed = self._mix(Params({**whole, "mu": whole["mu"].clamp(0, 1)}), self.mix == "batch" and "mu" in p)
            rest.update(mixed.restrict(rest))
            return mixed.restrict(p)

        learned = local.descend(
            now.select(part), lambda p, x, y: loss(p | Params(rest), x, y), epochs=epochs, project=project,
            train=train, weights=[k for k in now.select(part) if k != "mu"],
        )  # fmt: skip
        mu = {"mu": (now["mu"] + torch.stack(moves).mean()).clamp(0, 1)} if moves else {}
        return Params({**now, **learned, **rest, **mu})

    def _loss(
        self, p: Params, own: SplitModel, global_model: SplitModel, received: Predictor | None, local: Local,
        x: Tensor, y: Tensor,
    ) -> Tensor:  # fmt: skip
        """The sum of three losses: each has gradients only for its own quantities, so one step updates them all."""
        theta_G, theta_i, mu = p.strip_prefix("G/"), p.strip_prefix("i/"), p["mu"]
        f_G = global_model.body_given(theta_G.select("body."))(x)
        head = global_model.head_given(theta_G.select("head.")) if self.global_head else global_model.head
        total = local.loss(head, f_G, y)  # Eq. (4)
        target = (f_G if received is None else received(x)).detach()
        here, theirs = theta_i.map(Tensor.detach), theta_G.select("body.").map(Tensor.detach)
        if self.mu_grad == "chain":
            theta_i = differentiate_along(theta_i, here - theirs, mu)
        else:
            total = total + self._total(here * mu + theirs * (1 - mu), target, own, local, x, y)  # Eq. (6)
        return total + self._total(theta_i, target, own, local, x, y)  # Eq. (5)

    def _total(self, theta: Params, f_G: Tensor, own: SplitModel, local: Local, x: Tensor, y: Tensor) -> Tensor:
        """Eq. (9): (1 - lambda) l_sup + lambda l_kt."""
        f = own.body_given(theta)(x)
        transfer = kl(f, f_G) if self.kl == "local_global" else kl(f_G, f)  # Eq. (8)
        return (1 - self.lam) * local.loss(own.head, f, y) + self.lam * transfer

    def _mix(self, p: Params, now: bool) -> Params:
        """Eq. (3): theta_i = mu theta_i + (1 - mu) theta_G."""
        if not now:
            return p
        theta_G, theta_i, mu = p.strip_prefix("G/"), p.strip_prefix("i/"), p["mu"]
        mixed = mu * theta_i + (1 - mu) * theta_G.select("body.")
        return theta_G.add_prefix("G/") | mixed.add_prefix("i/") | Params(mu=mu)


def _renew(m: SplitModel, params: Params, local: Local) -> SplitModel:
    """The model with these parameters and the BatchNorm statistics that it has gathered."""
    return local.model(Params({**m.state(), **params}))
