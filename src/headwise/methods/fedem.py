"""FedEM — Marfoq et al., *Federated Multi-Task Learning under a Mixture of Distributions*, NeurIPS 2021.
https://arxiv.org/abs/2108.10252

    paper        here     meaning
    theta_m      down.w   component m, of M that all clients share
    pi_tm        me.pi    client t's weight of component m
    q_t(z=m)     q        responsibility of component m for a sample

    (1)  q(z=m | x, y) is proportional to pi_m exp(-l(theta_m; x, y)), under the components that were sent
    (2)  pi_m <- mean of q(z=m | x, y) over the client's samples
    (3)  theta_m: SGD on the mean of q(z=m | x, y) l(theta_m; x, y)
    (4)  prediction: sum_m pi_m softmax(theta_m(x))

Algorithm 1 of the paper (from memory), as its authors' code (https://github.com/omarfoq/FedEM, `client.py` and
`aggregator.py`); the numbers are ours. (1) depends on nothing but the sample and the download, so it is computed anew
for each batch instead of being stored by sample. A new client only estimates its weights, one turn of (1) and (2) per
epoch.

Departs from the paper: components start with the same body and different heads. BatchNorm statistics that stay at a
client are those of the first component.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax

from headwise.authoring import (
    Averaging, Central, Composed, Count, Local, Params, Predictor, Record, Shared, SplitModel, Update,
)  # fmt: skip

TINY = 1e-12  # keeps the logarithm of a weight finite


class Own(Record):
    """A client's weights of the components."""

    pi: Tensor


@dataclass(frozen=True)
class FedEM(Averaging[Own]):
    """Clients share several models and mix them by weights of their own, which EM finds."""

    family = "clusters"
    tasks = ("classification",)
    travels = "M whole models"
    stays = "weights of the models"
    traffic_down = "M * P"
    cost = 4

    M: Count = 3
    """components"""

    def shared(self, central: Central) -> Params:
        start = [central.model(central.random_head("fedem", m)) if m else central.init() for m in range(self.M)]
        return _join(m.params() for m in start)

    def client_init(self, local: Local) -> Own:
        return Own(torch.full((self.M,), 1 / self.M))

    def local_update(self, me: Own, down: Shared, local: Local) -> Update[Shared, Own]:
        models = self._models(down, local)
        sent = [local.freeze(m) for m in self._models(down, local)]

        def loss(x: Tensor, y: Tensor) -> Tensor:  # Eq. (3)
            return (_responsibilities(sent, me.pi, x, y) * _losses(models, x, y)).sum(0).mean()

        pi = self._weights(me.pi, sent, local)
        local.sgd(*models, loss=loss)
        return Update(Shared(_join(m.params() for m in models)), Own(pi), _mixture(models, pi), keep=models[0])

    def personalize(self, me: Own, down: Shared, local: Local) -> Predictor:
        return _mixture(self._models(down, local), me.pi)

    def join(self, me: Own, down: Shared, whole: Params | None, local: Local) -> Predictor:
        models = self._models(down, local)
        pi = me.pi
        for _ in range(round(local.epochs)):
            pi = self._weights(pi, models, local)
        return _mixture(models, pi)

    def _models(self, down: Shared, local: Local) -> list[SplitModel]:
        return [local.model(down.w.strip_prefix(f"{m}:")) for m in range(self.M)]

    def _weights(self, pi: Tensor, sent: Sequence[Predictor], local: Local) -> Tensor:
        """Eq. (2)."""
        return _responsibilities(sent, pi, *next(local.batches(1, size=local.n))).mean(1)


def _join(parts: Iterable[Params]) -> Params:
    return Params({k: t for m, part in enumerate(parts) for k, t in part.add_prefix(f"{m}:").items()})


def _losses(models: Sequence[Predictor], x: Tensor, y: Tensor) -> Tensor:
    """[M, n]"""
    return torch.stack([cross_entropy(m(x), y, reduction="none") for m in models])


@torch.no_grad()
def _responsibilities(sent: Sequence[Predictor], pi: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Eq. (1): [M, n]."""
    return (pi.clamp(min=TINY).log()[:, None] - _losses(sent, x, y)).softmax(0)


def _mixture(models: Sequence[SplitModel], pi: Tensor) -> Predictor:
    """Eq. (4), as logarithms: their softmax is the mixture."""

    def predict(x: Tensor, pi: Tensor, **models: nn.Module) -> Tensor:
        scores = torch.stack([log_softmax(m(x), 1) for m in models.values()])
        return (scores + pi.clamp(min=TINY).log()[:, None, None]).logsumexp(0)

    return Composed(predict, pi=pi, **{f"m{i}": m for i, m in enumerate(models)})
