"""Two rounds of the methods with a global model and one of one's own, by hand: Ditto, pFedMe and APFL.

All batches are full. `gradient` is that of the mean cross-entropy, derived in `byhand`; a pull of lam/2 ||v - w||^2
adds lam (v - w) to it.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from byhand import CLIENTS, START, A, B, Weights, add, close, gradient, weighted
from tiny import End, bench, plan_of, run
from torch import Tensor

from headwise.contract.averaging import Shared
from headwise.methods.apfl import APFL
from headwise.methods.ditto import Ditto
from headwise.methods.pfedme import PFedMe
from headwise.params import Params

LR = 0.5
START_FLOAT = Params({k: t.float() for k, t in START.items()})


def used(method: Any, end: End, client: int) -> dict[str, Tensor]:
    """What this client would use right after a download."""
    plan = plan_of(method)
    me = end.states[client].me if client in end.states else method.client_init(bench(plan, client, 0))
    return method.personalize(me, Shared(end.server.w), bench(plan, client, 3, purpose="pre")).state_dict()


@pytest.mark.parametrize(("method", "steps"), [(Ditto(), 2), (Ditto(lam=0.25, personal_epochs=3), 3)])
def test_ditto(method: Ditto, steps: int) -> None:
    """Algorithm 1: v_k <- v_k - eta (grad F_k(v_k) + lam (v_k - w^t)) with the w^t that was received, not the one that
    is being trained; w is FedAvg's. In round 1 v starts at w^0, in round 2 where it ended."""
    w, own = START, [START] * 3
    for _ in range(2):
        for c, (x, y) in enumerate(CLIENTS):
            for _ in range(steps):
                v = own[c]
                own[c] = add(v, (-LR, gradient(v, x, y)), (-LR * method.lam, v), (LR * method.lam, w))
        w = weighted([twice(w, x, y) for x, y in CLIENTS])
    end = run(plan_of(method, rounds=2, epochs=2))
    close(dict(end.server.w), w)
    for c in range(3):
        close(dict(end.states[c].me.v), own[c])
        close(used(method, end, c), own[c])


def twice(w: Weights, x: Tensor, y: Tensor) -> Weights:
    for _ in range(2):
        w = add(w, (-LR, gradient(w, x, y)))
    return w


def test_ditto_never_sends_its_own_model() -> None:
    """v and w_k start together, so that a first round of one step makes them equal; in every other case they differ."""
    plan = plan_of(Ditto(), epochs=2)
    for c in range(3):
        first = Ditto().local_update(Ditto().client_init(bench(plan, c, 0)), Shared(START_FLOAT), bench(plan, c))
        later = Ditto().local_update(first.me, Shared(START_FLOAT), bench(plan, c, 2))
        for update in (first, later):
            assert not any(torch.equal(t, update.me.v[k]) for k, t in update.up.w.items() if k in (A, B))


@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_pfedme(beta: float) -> None:
    """Algorithm 1: for each batch K steps theta <- theta - eta_p (grad f(theta) + lam (theta - w_i)) from the theta of
    the batch before, then w_i <- w_i - eta lam (w_i - theta); w <- (1 - beta) w + beta mean w_i. theta, not w_i, is
    kept and used; theta starts each round at w."""
    lam, K, eta_p, eta = 15.0, 5, 0.01, 0.05
    w, theta = START, [START] * 3
    for _ in range(2):
        copies: list[Weights] = []
        for c, (x, y) in enumerate(CLIENTS):
            w_i = theta[c] = w
            for _ in range(2):
                for _ in range(K):
                    p = theta[c]
                    theta[c] = add(p, (-eta_p, gradient(p, x, y)), (-eta_p * lam, p), (eta_p * lam, w_i))
                w_i = add(w_i, (-eta * lam, w_i), (eta * lam, theta[c]))
            copies.append(w_i)
        average = weighted(copies)
        w = {k: (1 - beta) * w[k] + beta * average[k] for k in w}
    method = PFedMe(server_lr=beta)
    end = run(plan_of(method, rounds=2, epochs=2, lr=eta))
    close(dict(end.server.w), w)
    for c in range(3):
        close(dict(end.states[c].me.theta), theta[c])
        close(used(method, end, c), theta[c])
    assert not torch.allclose(theta[1][A], w[A], atol=1e-3)


def test_pfedme_of_a_client_that_never_took_part_is_the_global_model() -> None:
    end = run(plan_of(PFedMe(), ratio=0.4, lr=0.05))
    (client,) = end.rows[0]["clients"]
    for c in {0, 1, 2} - {client}:
        close(used(PFedMe(), end, c), {k: t.double() for k, t in end.server.w.items()})


@pytest.mark.parametrize(("start", "adaptive"), [(0.5, True), (0.5, False), (0.9, True), (0.05, True)])
def test_apfl(start: float, adaptive: bool) -> None:
    """Algorithm 1, all three from the values before the batch: w <- w - eta grad f(w); with v-bar = a v + (1 - a) w,
    v <- v - eta a grad f(v-bar) (chain rule) and a <- a - eta <v - w, grad f(v-bar)>, kept in [0, 1]."""
    w, own, alphas = START, [START] * 3, [start] * 3
    for _ in range(2):
        copies = [w] * 3
        for c, (x, y) in enumerate(CLIENTS):
            for _ in range(3):
                a, v, w_i = alphas[c], own[c], copies[c]
                g = gradient({k: a * v[k] + (1 - a) * w_i[k] for k in v}, x, y)
                copies[c], own[c] = add(w_i, (-LR, gradient(w_i, x, y))), add(v, (-LR * a, g))
                slope = sum(float(((v[k] - w_i[k]) * g[k]).sum()) for k in g)
                alphas[c] = min(max(a - LR * slope, 0.0), 1.0) if adaptive else a
        w = weighted(copies)
    method = APFL(alpha=start, adaptive=adaptive)
    end = run(plan_of(method, rounds=2, epochs=3))
    close(dict(end.server.w), w)
    for c in range(3):
        close(dict(end.states[c].me.v), own[c])
        assert end.states[c].me.alpha.item() == pytest.approx(alphas[c], abs=1e-6)
        close(used(method, end, c), {k: alphas[c] * own[c][k] + (1 - alphas[c]) * w[k] for k in w})
    assert (start in alphas) is not adaptive
    assert start != 0.05 or alphas == [0.0] * 3  # a case in which the bound matters
