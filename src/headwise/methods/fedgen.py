"""FedGen — Zhu, Hong and Zhou, *Data-Free Knowledge Distillation for Heterogeneous Federated Learning*, ICML 2021.
https://arxiv.org/abs/2105.10056

    paper     here         meaning
    theta     down.w       the global model
    G_w       down.net     generator: a layer, ReLU and a layer map noise and a label to a feature
    p^(y)     down.shares  label distribution: each class's share of the samples of the last round's clients
    g         m.head       predictor: from a feature to scores
    alpha     alpha        weight of the generated features in a client's loss

    (1)  loss of the generator: CE(sum_k n_k / n g_k(G(eps, y)), y) over the round's heads g_k; eps ~ N(0, 1), y ~ p^.
         For heads of one layer, the sum is the score of their mean, which is what is computed
    (2)  loss of a client: l + alpha CE(g(G(eps, y)), y)

As PFLlib's files (https://github.com/TsingZ0/PFLlib, `servergen.py` and `clientgen.py`), with which its authors' code
(https://github.com/zhuangdizhu/FedGen) was compared; the numbers are ours. The authors' (1) is a mean of each head's
own loss, weighted by its client's samples of the label. Both draw eps from [0, 1], which they call Gaussian.

Departs from it: labels are those of the round's clients, not of all; in round 1, before the generator has learned,
clients have no second term. Of heads with several layers, (1) also takes the mean. The generator has no BatchNorm and
takes plain steps (code: Adam). Of the authors' code, the term that spreads the generated features, the divergence of
a client's scores from those of generated features of the same labels, and the decay of alpha are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, one_hot, relu

from headwise.authoring import (
    Central, Count, Local, Method, Natural, NonNegative, Nothing, Params, Positive, Record, Reply, SplitModel, Update,
    descend, mean,
)  # fmt: skip


class State(Record):
    """The global model, the generator, and each class's share [C] of the samples in the last round."""

    w: Params
    net: Params
    shares: Tensor


class Up(Record):
    """A client's model, and each class's share [C] of its samples."""

    w: Params
    shares: Tensor


@dataclass(frozen=True)
class FedGen(Method[State, Nothing, State, Up]):
    """FedAvg in which clients also learn from features that a generator, trained on the server, makes for labels."""

    family = "distillation"
    tasks = ("classification",)
    travels = "whole model, generator, shares of classes"
    stays = "nothing"
    traffic_down = "P + (noise + C + 1) * hidden + (hidden + 1) * K + C"
    traffic_up = "P + C"
    sums = "samples"

    alpha: NonNegative = 1.0
    """weight of the generated features in a client's loss; 0 is FedAvg"""
    noise: Count = 16
    """numbers of noise per generated feature"""
    hidden: Count = 64
    """width of the generator"""
    steps: Natural = 50
    """steps of the generator per round"""
    server_lr: Positive = 0.1
    """learning rate of the generator"""
    batch: Count = 32
    """generated features per step, on the server and at clients"""

    def server_init(self, central: Central) -> State:
        m = central.init()
        sizes = self.noise + central.classes, self.hidden, m.width
        net = central.draw(lambda: nn.Sequential(nn.Linear(*sizes[:2]), nn.ReLU(), nn.Linear(*sizes[1:])), "fedgen")
        return State(m.params(), Params(net.state_dict()), torch.zeros(central.classes))

    def aggregate(self, server: State, replies: Sequence[Reply[Up]], central: Central) -> State:
        if not replies:
            return server
        n = [r.n for r in replies]
        w = mean((r.up.w for r in replies), n)
        shares = mean((Params(shares=r.up.shares) for r in replies), n)["shares"]
        head = central.init().head_given(w.select("head."))

        def loss(net: Params, drawn: tuple[Tensor, Tensor]) -> Tensor:  # Eq. (1)
            return cross_entropy(head(_generate(net, *drawn, central.classes)), drawn[0])

        draws = (self._draw(shares, central.rng) for _ in range(self.steps))
        return State(w, descend(server.net, loss, draws, self.server_lr), shares)

    def global_model(self, server: State, central: Central) -> SplitModel | None:
        return central.model(server.w)

    def local_update(self, me: Nothing, down: State, local: Local) -> Update[Up, Nothing]:
        m = local.model(down.w)

        def loss(x: Tensor, y: Tensor) -> Tensor:  # Eq. (2)
            labels, eps = self._draw(down.shares, local.rng)
            f = _generate(down.net, labels, eps, local.classes)
            return local.loss(m, x, y) + self.alpha * cross_entropy(m.head(f), labels)

        local.sgd(m, loss=loss if self.alpha and down.shares.any() else None)
        return Update(Up(m.params(), local.class_counts.float() / local.n), me, m)

    def _draw(self, shares: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        likely = shares.clamp(min=1e-9)  # noise may have made a share negative
        labels = torch.multinomial(likely, self.batch, replacement=True, generator=rng)
        return labels, torch.randn(self.batch, self.noise, generator=rng)


def _generate(net: Params, y: Tensor, eps: Tensor, classes: int) -> Tensor:
    given = torch.cat((eps, one_hot(y, classes)), 1).type_as(net["0.weight"])
    return linear(relu(linear(given, net["0.weight"], net["0.bias"])), net["2.weight"], net["2.bias"])
