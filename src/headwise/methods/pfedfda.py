"""pFedFDA — McLaughlin and Su, *Personalized Federated Learning via Feature Distribution Adaptation*, NeurIPS 2024.
https://arxiv.org/abs/2411.00329

    paper            here               meaning
    phi              down.w             the shared feature extractor
    mu_g, Sigma_g    down.means, .cov   global class means [C, K] and the covariance [K, K] that all classes share
    mu^, Sigma^      means, cov         the same, estimated from a client's own features
    beta             beta               how much of its own estimates a client takes: of the means, of the covariance
    pi_i             priors             its class frequencies, each raised by EPSILON

    (1)  head: weight_c = Sigma^-1 mu_c, bias_c = -1/2 mu_c Sigma^-1 mu_c + log pi_c, with Sigma shrunk by EPSILON
    (2)  mu = beta_1 mu^ + (1 - beta_1) mu_g,   Sigma = beta_2 Sigma^ + (1 - beta_2) Sigma_g
    (3)  beta: the smallest loss of (1) with (2), each half of the client's features scored with estimates of the other

As its authors' code (https://github.com/cj-mclaughlin/pFedFDA, `client_fedfda.py`, `server_fedfda.py`); the numbers are
ours. A client trains only the extractor, under the head (1) of the global estimates; its own estimates are of the
features that it met meanwhile. What it predicts with is fitted to its training samples after each download.

Departs from it: (3) starts at 0.5 and is lowered by L-BFGS with a line search until it converges (code: ten steps of
torchmin). Estimates of a class need one sample. The code adds 1 to the diagonal of Sigma^ and 1e-4 to all of its
entries, where 1e-4 on the diagonal was probably meant; `ridge` is the 1, and the 1e-4 is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from headwise.authoring import (
    Central, Composed, Local, Method, NonNegative, Nothing, Params, Predictor, Record, Reply, SplitModel, Update, mean,
)  # fmt: skip

EPSILON = 1e-4
FOLDS = 2


class Gaussians(Record):
    """A body and the Gaussians of its features: a mean per class, and one covariance."""

    w: Params
    means: Tensor
    cov: Tensor


class Estimates(NamedTuple):
    means: Tensor
    cov: Tensor


@dataclass(frozen=True)
class PFedFDA(Method[Gaussians, Nothing, Gaussians, Gaussians]):
    """A shared body under heads that are computed: Gaussian classifiers between global and own feature statistics."""

    family = "shared body"
    tasks = ("classification",)
    travels = "body, class means and covariance of features"
    stays = "nothing"
    traffic_down = "F + C * K + K**2"
    traffic_up = "F + C * K + K**2"
    sums = "samples"
    cost = 1.4

    beta: Literal["two", "one", "local"] = "two"
    """fit a share for the means and one for the covariance, one for both, or take only the client's own estimates"""
    ridge: NonNegative = 1.0
    """added to the diagonal of a client's covariance"""

    def server_init(self, central: Central) -> Gaussians:
        m = central.init()
        means = torch.rand(central.classes, m.width, generator=central.rng)
        return Gaussians(m.params("body"), means, torch.eye(m.width))

    def aggregate(self, server: Gaussians, replies: Sequence[Reply[Gaussians]], central: Central) -> Gaussians:
        if not replies:
            return server
        sent = [Params({**r.up.w, "": r.up.means, ".": r.up.cov}) for r in replies]
        average = mean(sent, [r.n for r in replies])
        return Gaussians(average.restrict(server.w), average[""], average["."])

    def local_update(self, me: Nothing, down: Gaussians, local: Local) -> Update[Gaussians, Nothing]:
        m = local.model(down.w)
        seen = list[tuple[Tensor, Tensor]]()
        weight, bias = _head(Estimates(down.means, down.cov), _priors(local))

        def loss(x: Tensor, y: Tensor) -> Tensor:
            f = m.body(x)
            seen.append((f.detach(), y))
            return local.loss_of(f @ weight.T + bias, y)

        local.sgd(m, only=m.body, loss=loss)
        f, y = (torch.cat(part) for part in zip(*seen, strict=True)) if seen else _features(m, local)
        mixed = self._mix(f, y, down, local)
        return Update(Gaussians(m.params("body"), *mixed), me, _personal(m, mixed, local), keep=m)

    def personalize(self, me: Nothing, down: Gaussians, local: Local) -> Predictor:
        m = local.model(down.w)
        return _personal(m, self._mix(*_features(m, local), down, local), local)

    def _mix(self, f: Tensor, y: Tensor, down: Gaussians, local: Local) -> Estimates:
        """Eq. (2)."""
        own = self._estimate(f, y, down)
        beta = self._beta(f, y, down, local)
        return Estimates(*(part.type_as(f) for part in _blend(beta, own, down)))

    def _estimate(self, f: Tensor, y: Tensor, down: Gaussians) -> Estimates:
        """Class means, global where there are no samples, and the covariance around them; in double precision."""
        f = f.double()
        of = one_hot(y, len(down.means)).double()
        count = of.sum(0)
        means = torch.where(count[:, None] > 0, of.T @ f / count.clamp(min=1)[:, None], down.means.double())
        rest = f - means[y]
        return Estimates(means, rest.T @ rest / max(len(y) - 1, 1) + self.ridge * torch.eye(f.shape[1]).type_as(f))

    def _beta(self, f: Tensor, y: Tensor, down: Gaussians, local: Local) -> Tensor:
        """Eq. (3): [2]; zeros if no class has a sample for each half."""
        if self.beta == "local":
            return torch.ones(2, dtype=torch.float64)
        before = (one_hot(y, local.classes).cumsum(0) - 1).gather(1, y[:, None])[:, 0]  # samples of its class so far
        usable = y.bincount(minlength=local.classes)[y] >= FOLDS
        if not usable.any():
            return torch.zeros(2, dtype=torch.float64)
        halves = [usable & (before % FOLDS == k) for k in range(FOLDS)]
        folds = [(self._estimate(f[a], y[a], down), f[b].double(), y[b]) for a, b in (halves, halves[::-1])]
        at = torch.full((2 if self.beta == "two" else 1,), 0.5, dtype=torch.float64, requires_grad=True)
        solver = torch.optim.LBFGS([at], max_iter=50, tolerance_grad=1e-9, line_search_fn="strong_wolfe")
        priors = _priors(local).double()

        def loss() -> Tensor:
            heads = [_head(_blend(at.clamp(0, 1).expand(2), own, down), priors) for own, _, _ in folds]
            scores = [x @ weight.T + bias for (weight, bias), (_, x, _) in zip(heads, folds, strict=True)]
            total = torch.stack([cross_entropy(z, t) for z, (_, _, t) in zip(scores, folds, strict=True)]).sum()
            at.grad = torch.autograd.grad(total, at)[0]
            return total

        with torch.enable_grad():
            solver.step(loss)  # pyright: ignore[reportUnknownMemberType]
        return at.detach().clamp(0, 1).expand(2)


def _blend(beta: Tensor, own: Estimates, down: Gaussians) -> Estimates:
    globally = (down.means.double(), down.cov.double())
    return Estimates(*(b * o + (1 - b) * g for b, o, g in zip(beta, own, globally, strict=True)))


def _head(at: Estimates, priors: Tensor) -> tuple[Tensor, Tensor]:
    """Eq. (1): weight [C, K] and bias [C]."""
    unit = torch.eye(len(at.cov)).type_as(at.cov)
    shrunk = (1 - EPSILON) * at.cov + EPSILON * at.cov.trace() / len(unit) * unit
    weight = at.means @ torch.inverse(shrunk)
    return weight, priors.log() - (at.means * weight).sum(1) / 2


def _priors(local: Local) -> Tensor:
    raised = local.class_counts / local.n + EPSILON
    return raised / raised.sum()


def _features(m: SplitModel, local: Local) -> tuple[Tensor, Tensor]:
    return next(local.batches(1, through=m.body, size=local.n))


def _personal(m: SplitModel, at: Estimates, local: Local) -> Predictor:
    def predict(x: Tensor, body: nn.Module, weight: Tensor, bias: Tensor) -> Tensor:
        return body(x) @ weight.T + bias

    weight, bias = _head(at, _priors(local))
    return Composed(predict, body=m.body, weight=weight, bias=bias)
