"""GPFL — Zhang et al., *GPFL: Simultaneously Learning Global and Personalized Feature Information for Personalized
Federated Learning*, ICCV 2023. https://arxiv.org/abs/2308.10279

    paper      here            meaning
    W_fe       down.w          feature extractor
    GCE        gce             global category embeddings, one for each class
    CoV        gamma, beta     conditional valve: a scale and a shift of the features, computed from a condition
    g          everyone        global condition: the mean embedding
    p_i        mine            personalized condition: embeddings weighted by the client's own class frequencies
    W_hd_i     me.h            personalized head
    lambda     lam             weight of the distance between features and embeddings
    mu         mu              weight decay of GCE and CoV

Departs from the paper: the distance is the mean over a batch; in the public code it is the norm of the whole batch. The
conditions come from the embeddings just received; the public code uses those of the round before, and zeros at first.

Read: its abstract and PFLlib's `clientgpfl.py`, which has the same author. Numbers of the paper's sections, equations
and algorithms are from memory.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize, pairwise_distance, relu

from headwise.authoring import (
    Averaging, Bench, Central, Composed, Local, NonNegative, OwnHead, Params, Predictor, Shared, SplitModel, Update,
)  # fmt: skip


class Guides(NamedTuple):
    """The shared modules other than the body."""

    gce: nn.Embedding
    gamma: nn.Sequential
    beta: nn.Sequential

    def valve(self, f: Tensor, condition: Tensor) -> Tensor:
        """Section 3: the features that this condition lets through."""
        return _valve(f, condition, self.gamma, self.beta)

    def params(self) -> Params:
        """The live parameters, not copies, by module."""
        named = {"gce": self.gce, "gamma": self.gamma, "beta": self.beta}
        return Params({f"{name}.{k}": t for name, m in named.items() for k, t in m.named_parameters()})


@dataclass(frozen=True)
class GPFL(Averaging[OwnHead]):
    """One body learns global features, guided by shared class embeddings, and personal ones for a personal head."""

    family = "shared body"
    tasks = ("classification",)
    travels = "body, class embeddings and valve"
    stays = "head"
    traffic_down = "F + C * K + 2 * K**2 + 6 * K"
    cost = 1.2

    lam: NonNegative = 0.01
    """weight of the distance between global features and the embedding of their class"""
    mu: NonNegative = 0.1
    """weight decay of the embeddings and of the valve"""

    def shared(self, central: Central) -> Params:
        m = central.init()
        return m.params("body") | _snapshot(_guides(m.width, central))  # Algorithm 1: the mean of all three modules

    def local_update(self, me: OwnHead, down: Shared, local: Local) -> Update[Shared, OwnHead]:
        m, guides, mine = _parts(me, down, local)
        fixed = guides.gce.weight.detach().clone()
        everyone = fixed.mean(0)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            """Section 3: the personal task, the angle and the length of global features, and weight decay."""
            f = m.body(x)
            personal = local.loss_of(m.head(guides.valve(f, mine)), y)
            f_G = guides.valve(f, everyone)
            angle = cross_entropy(normalize(f_G) @ normalize(guides.gce.weight).T, y)
            length = pairwise_distance(f_G, fixed[y], eps=0.0).mean()
            return personal + angle + self.lam * length + self.mu / 2 * guides.params().sq_norm()

        local.sgd(m, *guides, loss=loss)  # Algorithm 1
        up = Shared(m.params("body") | _snapshot(guides))
        return Update(up, OwnHead(m.state("head")), _personal(m, guides, mine), keep=m)

    def personalize(self, me: OwnHead, down: Shared, local: Local) -> Predictor:
        return _personal(*_parts(me, down, local))


def _valve(f: Tensor, condition: Tensor, gamma: nn.Module, beta: nn.Module) -> Tensor:
    return relu(f * (gamma(condition) + 1) + beta(condition))


def _personal(m: SplitModel, guides: Guides, mine: Tensor) -> Predictor:
    def predict(x: Tensor, m: SplitModel, gamma: nn.Module, beta: nn.Module, mine: Tensor) -> Tensor:
        return m.head(_valve(m.body(x), mine, gamma, beta))

    return Composed(predict, m=m, gamma=guides.gamma, beta=guides.beta, mine=mine)


def _guides(K: int, bench: Bench) -> Guides:
    gce = bench.draw(lambda: nn.Embedding(bench.classes, K), "gpfl", "gce")
    valve = [bench.draw(lambda: nn.Sequential(nn.Linear(K, K), nn.ReLU(), nn.LayerNorm(K)), "gpfl", i) for i in (0, 1)]
    return Guides(gce, *valve)


def _snapshot(guides: Guides) -> Params:
    return guides.params().map(lambda t: t.detach().clone())


def _parts(me: OwnHead, down: Shared, local: Local) -> tuple[SplitModel, Guides, Tensor]:
    """The global body with the client's own head, the global modules, and the client's condition p_i."""
    m = local.model(down.w.select("body.") | me.h)
    guides = _guides(m.width, local)
    with torch.no_grad():
        for k, t in guides.params().items():
            t.copy_(down.w[k])
    return m, guides, local.class_counts / local.n @ guides.gce.weight.detach()
