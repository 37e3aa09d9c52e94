"""Three rounds of FedPHP by hand (Li et al., ECML PKDD 2021), with full batches.

The gradient of the cross-entropy is derived in `byhand`; that of the MMD is by autograd on plain tensors.
"""

from __future__ import annotations

import pytest
import torch
from byhand import CLIENTS, START, A, B, Weights, close, features, gradient, weighted
from tiny import bench, plan_of, run
from torch import Tensor

from headwise.contract.averaging import Shared
from headwise.methods.fedphp import FedPHP, Inherited
from headwise.params import Params

LR = 0.5


def add(w: Weights, *terms: tuple[float, Weights]) -> Weights:
    return {k: t + sum(s * d[k] for s, d in terms) for k, t in w.items()}


def mmd_gradient(w: Weights, p: Weights, x: Tensor) -> Weights:
    """By autograd, on plain tensors: mean k(f, f') + mean k(g, g') - 2 mean k(f, g), k = sum_s exp(-d^2 / 2s)."""
    body = {k: w[k].clone().requires_grad_() for k in (A, B)}
    f, g = features(w | body, x), features(p, x)
    total = torch.zeros((), dtype=torch.float64)
    for sign, a, b in ((1, f, f), (1, g, g), (-2, f, g)):
        for s in (10, 15, 20, 50):
            pairs = [torch.exp(-((u - v) ** 2).sum() / (2 * s)) for u in a for v in b]
            total = total + sign * sum(pairs) / len(pairs)
    slopes = torch.autograd.grad(total, list(body.values()))
    return {k: torch.zeros_like(t) for k, t in w.items()} | dict(zip(body, slopes, strict=True))


def test_fedphp() -> None:
    """w_i follows (1 - lam) grad CE + lam grad MMD(phi_w, phi_p); then p <- mu_z p + (1 - mu_z) w_i. Everybody takes
    part, so mu_z = mu z / T with z = 0, 1, 2; in round 1 p is the download, and becomes w_i. p is what is used."""
    lam, mu, T = 0.5, 0.9, 3
    w, inherited = START, [START] * 3
    for z in range(T):
        copies: list[Weights] = []
        for c, (x, y) in enumerate(CLIENTS):
            w_i, p = w, inherited[c]
            for _ in range(2):
                w_i = add(w_i, (-LR * (1 - lam), gradient(w_i, x, y)), (-LR * lam, mmd_gradient(w_i, p, x)))
            mu_z = mu * z / T
            inherited[c] = {k: mu_z * p[k] + (1 - mu_z) * w_i[k] for k in p}
            copies.append(w_i)
        w = weighted(copies)
    method = FedPHP(lam=lam, mu=mu)
    end = run(plan_of(method, rounds=T, epochs=2))
    close(dict(end.server.w), w)
    for c in range(3):
        assert end.states[c].me.z == T
        close(dict(end.states[c].me.p), inherited[c])
        used = method.personalize(end.states[c].me, Shared(end.server.w), bench(plan_of(method), c, 3))
        close(used.state_dict(), inherited[c])


@pytest.mark.parametrize(("z", "t"), [(0, 5), (1, 4), (3, 9)])
def test_fedphp_grows_with_the_participations(z: int, t: int) -> None:
    """mu_z = mu z / (rho T); a client that has now taken part z + 1 times in t rounds takes rho for (z + 1) / t."""
    method, plan = FedPHP(lam=0.0, mu=0.8), plan_of(FedPHP(), rounds=10)
    p, w = ({k: s * v for k, v in START.items()} for s in (3.0, 1.0))
    me = Inherited(Params({k: v.float() for k, v in p.items()}), z)
    update = method.local_update(me, Shared(Params({k: v.float() for k, v in w.items()})), bench(plan, 2, t))
    mu_z, w_i = 0.8 * z / ((z + 1) / t * 10), add(w, (-LR, gradient(w, *CLIENTS[2])))
    close(dict(update.me.p or {}), {k: mu_z * p[k] + (1 - mu_z) * w_i[k] for k in p})
