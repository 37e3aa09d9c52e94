"""FedCP — Zhang et al., *FedCP: Separating Feature Information for Personalized Federated Learning via Conditional
Policy*, KDD 2023. https://arxiv.org/abs/2307.01217

    paper      here          meaning
    W_fe, W_hd down.w        global feature extractor and head; clients train a copy of the first, the second is frozen
    W_hd_i     me.h          personalized head
    CPN        cpn           conditional policy network: splits each feature into a personal and a global share
    v_i        v             the client's context: the sum of its head's rows, scaled to length one
    r_i, s_i   a, b          the two shares, a + b = 1
    lambda     lam           weight of keeping features close to the global extractor's

Departs from the paper: the policy is sampled (Gumbel-softmax) only in training; evaluation uses the plain softmax. The
first round's context comes from the initial head; in the public code it is random.

Read: its abstract and its authors' code (https://github.com/TsingZ0/FedCP). Numbers of the paper's sections, equations
and algorithms are from memory.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from headwise.authoring import (
    Averaging, Bench, Central, Composed, Local, NonNegative, OwnHead, Params, Predictor, Shared, SplitModel, Update,
    mmd,
)  # fmt: skip


class Parts(NamedTuple):
    """The global body with the client's own head, the global model, the policy network and the client's context."""

    m: SplitModel
    global_model: SplitModel
    cpn: nn.Sequential
    v: Tensor


@dataclass(frozen=True)
class FedCP(Averaging[OwnHead]):
    """A small network divides each sample's features into a part for the personal head and one for the global head."""

    family = "two heads"
    tasks = ("classification", "multilabel", "regression")
    travels = "whole model and policy network"
    stays = "head (half of it is sent)"
    uploaded_fields = ("h",)
    traffic_down = "P + 2 * K**2 + 6 * K"
    cost = 1.5

    lam: NonNegative = 5.0
    """weight of the discrepancy between the features of the local and the global body; 0 disables it"""

    def shared(self, central: Central) -> Params:
        m = central.init()
        return m.params() | _snapshot(_cpn(m.width, central))  # Algorithm 1: the mean of both

    def local_update(self, me: OwnHead, down: Shared, local: Local) -> Update[Shared, OwnHead]:
        parts = _parts(me, down, local)
        m, global_model, cpn, _ = parts
        f_global = local.freeze(global_model.body)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z, f = _forward(x, parts, local.rng)
            return local.loss_of(z, y) + self.lam * mmd(f, f_global(x))

        # Algorithm 1: the global extractor and head are frozen
        local.sgd(m, cpn, global_model, only=(m, cpn), loss=loss)
        up = Shared(m.params("body") | 0.5 * (m.params("head") + global_model.params("head")) | _snapshot(cpn))
        return Update(up, OwnHead(m.state("head")), _personal(parts), keep=m)

    def personalize(self, me: OwnHead, down: Shared, local: Local) -> Predictor:
        return _personal(_parts(me, down, local))


def _parts(me: OwnHead, down: Shared, local: Local) -> Parts:
    body = down.w.select("body.")
    m, global_model = local.model(body | me.h), local.model(body | down.w.select("head."))
    cpn = _cpn(m.width, local)
    cpn.load_state_dict(dict(down.w.strip_prefix("cpn.")))
    rows = next(layer.weight.detach() for layer in m.head.modules() if isinstance(layer, nn.Linear))
    return Parts(m, global_model, cpn, normalize(rows.sum(0), dim=0))


def _forward(x: Tensor, parts: Parts, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Section 3: the scores h_i(a f) + h_g(b f) of a sampled policy, and f."""
    m, global_model, cpn, v = parts
    f = m.body(x)
    policy = cpn(f * v).unflatten(1, (2, -1))
    # Gumbel noise is minus the logarithm of exponential variables
    policy = policy - torch.empty(policy.shape).exponential_(generator=rng).log().type_as(policy)
    a, b = policy.softmax(1).unbind(1)
    return m.head(f * a) + global_model.head(f * b), f


def _personal(parts: Parts) -> Predictor:
    """The same scores with the plain softmax."""

    def predict(x: Tensor, m: SplitModel, global_model: nn.Module, cpn: nn.Sequential, v: Tensor) -> Tensor:
        f = m.body(x)
        a, b = cpn(f * v).unflatten(1, (2, -1)).softmax(1).unbind(1)
        return m.head(f * a) + global_model(f * b)

    return Composed(predict, m=parts.m, global_model=parts.global_model.head, cpn=parts.cpn, v=parts.v)


def _cpn(K: int, bench: Bench) -> nn.Sequential:
    return bench.draw(lambda: nn.Sequential(nn.Linear(K, 2 * K), nn.LayerNorm(2 * K), nn.ReLU()), "fedcp")


def _snapshot(cpn: nn.Sequential) -> Params:
    return Params(cpn.state_dict()).map(torch.clone).add_prefix("cpn.")
