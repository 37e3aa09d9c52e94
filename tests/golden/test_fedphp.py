"""Three rounds of FedPHP by hand (Li et al., ECML PKDD 2021), with full batches.

The gradient of the cross-entropy is derived in `byhand`; that of the MMD is by autograd on plain tensors.
"""

from __future__ import annotations

import pytest
import torch
from byhand import CLIENTS, START, A, B, Weights, add, close, features, gradient, weighted
from tiny import bench, floats, plan_of, run
from torch import Tensor

from headwise.contract.averaging import Shared
from headwise.methods.fedphp import FedPHP, Inherited

LR = 0.5


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
    part, so mu_z = mu z / T with z = 0, 1, 2; p starts as the initial model, and becomes w_i. p is what is used."""
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


@pytest.mark.parametrize(("z", "t", "ratio"), [(0, 5, 0.5), (1, 4, 0.5), (3, 9, 0.5), (1, 2, 0.05), (7, 9, 0.5)])
def test_fedphp_grows_with_the_participations(z: int, t: int, ratio: float) -> None:
    """mu_z = mu z / Z, Z = rho T being the participations to be expected in T = 10 rounds, but at least one; a client
    that took part more often keeps mu. The round does not matter."""
    method, plan = FedPHP(lam=0.0, mu=0.8), plan_of(FedPHP(), rounds=10, ratio=ratio)
    p, w = ({k: s * v for k, v in START.items()} for s in (3.0, 1.0))
    update = method.local_update(Inherited(floats(p), z), Shared(floats(w)), bench(plan, 2, t))
    mu_z, w_i = min(0.8 * z / max(ratio * 10, 1), 0.8), add(w, (-LR, gradient(w, *CLIENTS[2])))
    close(dict(update.me.p), {k: mu_z * p[k] + (1 - mu_z) * w_i[k] for k in p})


def test_a_newcomer_inherits_the_initial_model() -> None:
    """First drawn in round 4: the download has moved on, its inherited model is still the one that all began with."""
    lam, plan = 0.5, plan_of(FedPHP(lam=0.5), rounds=10)
    local, (x, y) = bench(plan, 2, 4), CLIENTS[2]
    me, w = FedPHP(lam=lam).client_init(local), {k: 2 * t for k, t in START.items()}
    used = FedPHP(lam=lam).personalize(me, Shared(floats(w)), local)
    close(used.state_dict(), START)
    update = FedPHP(lam=lam).local_update(me, Shared(floats(w)), local)
    w_i = add(w, (-LR * (1 - lam), gradient(w, x, y)), (-LR * lam, mmd_gradient(w, START, x)))
    close(dict(update.up.w), w_i)
    close(dict(update.me.p), w_i)
