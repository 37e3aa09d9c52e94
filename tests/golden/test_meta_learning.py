"""Per-FedAvg and FedMeta by hand, batch by batch in the order that the client's generator gives.

With g_b(w) the gradient of the mean cross-entropy on the samples b (derived in `byhand`) and w' = w - alpha g_S(w), the
gradient of L_Q(w') is, by the chain rule, (I - alpha H_S(w)) g_Q(w'), H_S being the Hessian of L_S. A product H v is
taken here as a difference quotient of gradients in double precision.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from byhand import START, Weights, close, gradient, weighted
from tiny import Client, bench, plan_of
from torch import Tensor

from headwise.contract.averaging import Shared
from headwise.contract.method import Reply
from headwise.engine.client.client_bench import ClientBench
from headwise.engine.server_bench import ServerBench
from headwise.methods.fedmeta import FedMeta, Learner, Slope
from headwise.methods.per_fedavg import PerFedAvg
from headwise.params import Params
from headwise.records import Nothing

LR, DECAY = 0.25, 0.5
SIZES = [11, 7, 1]


def client(n: int) -> Client:
    return torch.randn(n, 2, generator=torch.Generator().manual_seed(n)), torch.arange(n) % 3


CLIENTS = [client(n) for n in SIZES]
ONES: Weights = {k: torch.ones_like(t) for k, t in START.items()}
START_FLOAT = Params({k: t.float() for k, t in START.items()})


def plan(method: Any) -> Any:
    return plan_of(method, CLIENTS, batch=2, lr=LR, lr_decay=DECAY, epochs=2)


def order(local: ClientBench) -> torch.Generator:
    """A generator that will give what the client's own is about to."""
    rng = torch.Generator()
    rng.set_state(local.rng.get_state())
    return rng


def g(w: Weights, c: int, i: Tensor) -> Weights:
    return gradient(w, CLIENTS[c][0][i], CLIENTS[c][1][i])


def minus(w: Weights, d: Weights, rate: float | Weights) -> Weights:
    return {k: t - (rate if isinstance(rate, float) else rate[k]) * d[k] for k, t in w.items()}


def hessian_times(w: Weights, v: Weights, c: int, i: Tensor) -> Weights:
    up, down = (g(minus(w, v, h), c, i) for h in (-1e-6, 1e-6))
    return {k: (up[k] - down[k]) / 2e-6 for k in w}


def meta(w: Weights, rate: float | Weights, c: int, S: Tensor, Q: Tensor, exact: bool) -> Weights:
    """(I - H_S diag(rate)) g_Q(w - rate g_S(w)), or without H."""
    g_Q = g(minus(w, g(w, c, S), rate), c, Q)
    scaled = minus({k: 0 * t for k, t in w.items()}, g_Q, rate)  # -rate g_Q
    return minus(g_Q, hessian_times(w, scaled, c, S), -1.0) if exact else g_Q


@pytest.mark.parametrize("c", [0, 1, 2])
@pytest.mark.parametrize(
    ("method", "alpha"),
    [
        (PerFedAvg(), DECAY * LR),
        (PerFedAvg(alpha=0.75), 0.75),
        (PerFedAvg(alpha=0.75, hessian="exact"), 0.75),
    ],
)
def test_per_fedavg_client(method: PerFedAvg, alpha: float, c: int) -> None:
    """Algorithm 1: w <- w - beta (I - alpha H) grad f(w'; D'), w' = w - alpha grad f(w; D). Batches of 2 * 2 are cut
    in halves: 11 samples are 2+2, 2+2, 1+2; 7 are 2+2, 1+2; a single sample is an ordinary step. An epoch passes twice
    over the data, so that tau is the number of steps that FedAvg takes with batches of 2. beta is the model's rate,
    decayed once in round 2. Then one step of alpha on one batch of 2 makes the personal model."""
    local = bench(plan(method), c, 2)
    rng, w = order(local), START
    update = method.local_update(Nothing(), Shared(START_FLOAT), local)
    for _ in range(2 * 2):
        for i in torch.randperm(SIZES[c], generator=rng).split(4):
            half = len(i) // 2
            slope = meta(w, alpha, c, i[:half], i[half:], method.hessian == "exact") if half else g(w, c, i)
            w = minus(w, slope, DECAY * LR)
    close(dict(update.up.w), w)
    batch = torch.randperm(SIZES[c], generator=rng)[:2]
    close(update.model.state_dict(), minus(w, g(w, c, batch), alpha))


@pytest.mark.parametrize("n", [8, 16, 40])
def test_per_fedavg_takes_as_many_steps_as_fedavg(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """tau = E n / B updates of the meta-model, each with two gradients of B samples: twice what FedAvg computes."""
    used: list[int] = []
    plain = ClientBench.loss
    monkeypatch.setattr(ClientBench, "loss", lambda self, m, x, y: used.append(len(y)) or plain(self, m, x, y))
    method, E, B = PerFedAvg(), 3, 2
    local = bench(plan_of(method, [client(n)], batch=B, epochs=E), 0)
    method.local_update(Nothing(), Shared(START_FLOAT), local)
    steps = used[:-1]  # the last gradient makes the personal model
    assert steps == [B] * (2 * E * n // B)
    assert sum(steps) == PerFedAvg.cost * E * n


def test_per_fedavg_personal_model_is_one_step_from_the_download() -> None:
    method, local = PerFedAvg(alpha=0.75), bench(plan(PerFedAvg()), 0, 2, purpose="pre")
    batch = torch.randperm(11, generator=order(local))[:2]
    found = method.personalize(Nothing(), Shared(START_FLOAT), local).state_dict()
    close(found, minus(START, g(START, 0, batch), 0.75))


@pytest.mark.parametrize("c", [0, 1, 2])
@pytest.mark.parametrize("algorithm", ["maml", "fomaml", "meta_sgd"])
def test_fedmeta_client(algorithm: Any, c: int) -> None:
    """Algorithm 1: g_u = grad_theta L_Q(theta_u) with theta_u = theta - alpha grad L_S(theta), once on all samples; of
    11, int(0.4 * 11) = 4 are the support. For Meta-SGD alpha is a rate for every parameter, and d/d alpha is
    -grad L_S * grad L_Q(theta_u), element by element. A single sample is both sets."""
    method, local = FedMeta(algorithm=algorithm, support=0.4, inner_lr=0.5), bench(plan(FedMeta()), c, 2)
    rates = {k: 0.25 + (t > 0) for k, t in START.items()} if algorithm == "meta_sgd" else None
    down = Learner(START_FLOAT, None if rates is None else Params({k: t.float() for k, t in rates.items()}))
    rng = order(local)
    update, all_of = method.local_update(Nothing(), down, local), torch.randperm(SIZES[c], generator=rng)
    cut = {11: 4, 7: 2, 1: 0}[SIZES[c]]
    S, Q = (all_of[:cut], all_of[cut:]) if cut else (all_of, all_of)
    rate: float | Weights = 0.5 if rates is None else rates
    close(dict(update.up.g), meta(START, rate, c, S, Q, algorithm != "fomaml"))
    if rates is None:
        assert update.up.rate is None
    else:
        g_S, g_Q = g(START, c, S), g(minus(START, g(START, c, S), rates), c, Q)
        close(dict(update.up.rate or {}), {k: -g_S[k] * g_Q[k] for k in START})
    stepped = minus(START, g(START, c, all_of), rate)
    close(update.model.state_dict(), stepped)
    close(method.personalize(Nothing(), down, bench(plan(method), c, 2)).state_dict(), stepped)


def test_fedmeta_server() -> None:
    """Algorithm 1: (theta, alpha) <- (theta, alpha) - beta / m sum_u g_u, whatever the clients' sizes."""
    method = FedMeta(algorithm="meta_sgd", meta_lr=0.3, inner_lr=0.5)
    central = ServerBench(plan(method), 1)
    server = method.server_init(central)
    close(dict(server.rate or {}), {k: 0.5 * t for k, t in ONES.items()})
    slopes = [{k: t * s for k, t in START.items()} for s in (1, 2, 6)]
    ups = [Slope(Params({k: t.float() for k, t in s.items()}), START_FLOAT) for s in slopes]
    after = method.aggregate(
        server, [Reply(i, up, n) for i, (up, n) in enumerate(zip(ups, SIZES, strict=True))], central
    )
    close(dict(after.w), minus(START, weighted(slopes, sizes=[1, 1, 1]), 0.3))
    close(dict(after.rate or {}), {k: 0.5 * ONES[k] - 0.3 * t for k, t in START.items()})


def test_fedmeta_takes_several_inner_steps() -> None:
    """Without the second-order term: the gradient at theta - a g_S(theta) - a g_S(theta')."""
    method, local = FedMeta(algorithm="fomaml", inner_steps=2, inner_lr=0.5), bench(plan(FedMeta()), 0, 1)
    i = torch.randperm(11, generator=order(local))
    update = method.local_update(Nothing(), Learner(START_FLOAT, None), local)
    first = minus(START, g(START, 0, i[:5]), 0.5)
    close(dict(update.up.g), g(minus(first, g(first, 0, i[:5]), 0.5), 0, i[5:]))
