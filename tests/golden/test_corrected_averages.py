"""Rounds of the methods that correct FedAvg's drift, by hand: SCAFFOLD, FedNova and MOON.

`gradient` is that of the mean cross-entropy, derived in `byhand`. Batches are full, or all samples of a client are the
same, so that their order does not matter.
"""

from __future__ import annotations

import pytest
import torch
from byhand import CLIENTS, SIZES, START, A, B, Weights, add, close, features, gradient, weighted
from tiny import bench, floats, model_of, plan_of, run
from torch import Tensor

from headwise.methods.fednova import FedNova
from headwise.methods.moon import MOON
from headwise.methods.scaffold import Scaffold

LR = 0.5
ZERO: Weights = {k: torch.zeros_like(t) for k, t in START.items()}


def travelled(steps: int, momentum: float) -> float:
    """FedNova, Section 4.1: |a|_1 = (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho); tau without momentum."""
    rho = momentum
    return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)


def heavy_ball(w: Weights, x: Tensor, y: Tensor, steps: int, momentum: float, shift: Weights = ZERO) -> Weights:
    """u <- rho u + g + shift, w <- w - lr u, from u = 0."""
    u = ZERO
    for _ in range(steps):
        g = gradient(w, x, y)
        u = {k: momentum * u[k] + g[k] + shift[k] for k in u}
        w = add(w, (-LR, u))
    return w


@pytest.mark.parametrize(("ratio", "server_lr"), [(1.0, 1.0), (0.67, 0.8)])
def test_scaffold(ratio: float, server_lr: float) -> None:
    """Algorithm 1, option II. Line 10: y <- y - eta (g(y) - c_i + c), K times; line 12: c_i+ is
    c_i - c + (x - y)/(K eta); lines 16, 17: x += eta_g mean (y - x), c += |S|/N mean (c_i+ - c_i), plain means."""
    K, end = 2, run(plan_of(Scaffold(server_lr=server_lr), rounds=3, epochs=2, ratio=ratio))
    x, c, own = START, ZERO, [ZERO] * 3
    for row in end.rows:
        chosen: list[int] = row["clients"]
        dx, dc = ZERO, ZERO
        for i in chosen:
            y = heavy_ball(x, *CLIENTS[i], K, 0.0, add(c, (-1, own[i])))
            new = {k: own[i][k] - c[k] + (x[k] - y[k]) / (K * LR) for k in x}
            dx = add(dx, (1 / len(chosen), y), (-1 / len(chosen), x))
            dc = add(dc, (1 / len(chosen), new), (-1 / len(chosen), own[i]))
            own[i] = new
        x, c = add(x, (server_lr, dx)), add(c, (len(chosen) / 3, dc))
    close(dict(end.server.w), x)
    close(dict(end.server.c), c)
    for i, state in end.states.items():
        close(dict(state.me.c), own[i])
    assert len({len(row["clients"]) for row in end.rows} | {3}) == (1 if ratio == 1 else 2)


def test_scaffold_control_variate_after_one_step_is_the_gradient() -> None:
    """From c = c_i = 0 and with one step, (x - y)/eta is the gradient at x itself."""
    end = run(plan_of(Scaffold()))
    for c, (x, y) in enumerate(CLIENTS):
        close(dict(end.states[c].me.c), gradient(START, x, y))


def test_scaffold_with_momentum_divides_by_what_momentum_adds() -> None:
    """x - y = eta sum_k a_k (g_k - c_i + c), so c_i+ is the mean of the g_k by weight a_k, if divided by eta |a|_1."""
    method, x_y, c, own = Scaffold(), CLIENTS[2], gradient(START, *CLIENTS[0]), gradient(START, *CLIENTS[1])
    local = bench(plan_of(method, epochs=3, momentum=0.9), 2)
    down = type(method.server_init(local))(floats(START), floats(c))
    update = method.local_update(type(method.client_init(local))(floats(own)), down, local)
    y = heavy_ball(START, *x_y, 3, 0.9, add(c, (-1, own)))
    close(dict(update.up.w), y)
    new = {k: own[k] - c[k] + (START[k] - y[k]) / (LR * travelled(3, 0.9)) for k in y}
    close(dict(update.me.c), new)
    close(dict(update.up.dc), add(new, (-1, own)))


ALIKE = [(x[:1].repeat(n, 1), y[:1].repeat(n)) for (x, y), n in zip(CLIENTS, [3, 1, 2], strict=True)]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fednova(momentum: float) -> None:
    """Section 5 and Eq. (4): x <- x - tau_eff sum_i p_i eta d_i with eta d_i = (x - x_i)/|a_i|_1, p_i = n_i/n and
    tau_eff = sum_i p_i |a_i|_1. Batches of one: 6, 2 and 4 steps."""
    x, sizes = START, [3, 1, 2]
    for _ in range(2):
        parts = [heavy_ball(x, *data, 2 * n, momentum) for data, n in zip(ALIKE, sizes, strict=True)]
        a = [travelled(2 * n, momentum) for n in sizes]
        tau_eff = sum(n / 6 * a_i for n, a_i in zip(sizes, a, strict=True))
        d = weighted([{k: (x[k] - p[k]) / a_i for k in x} for p, a_i in zip(parts, a, strict=True)], sizes=sizes)
        x = add(x, (-tau_eff, d))
    end = run(plan_of(FedNova(), ALIKE, rounds=2, epochs=2, batch=1, momentum=momentum))
    close(dict(end.server.w), x)


def test_fednova_leaves_out_who_took_no_step() -> None:
    """With batches of 2 and no smaller ones, the client with one sample never trains and has no direction."""
    end = run(plan_of(FedNova(), ALIKE, batch=2, drop_last=True))
    parts = [heavy_ball(START, *ALIKE[c], 1, 0.0) for c in (0, 2)]
    close(dict(end.server.w), weighted(parts, sizes=[3, 2]))


def contrast_gradient(w: Weights, world: Weights, prev: Weights, x: Tensor, tau: float) -> Weights:
    """By autograd, on plain tensors: the mean of -log(e^(cos(z, z_glob)/tau) / (that + e^(cos(z, z_prev)/tau)))."""
    body = {k: w[k].clone().requires_grad_() for k in (A, B)}
    z, total = features(w | body, x), torch.zeros((), dtype=torch.float64)
    for u, g, p in zip(z, features(world, x), features(prev, x), strict=True):
        near, far = (((u @ v) / (u.norm() * v.norm()) / tau).exp() for v in (g, p))
        total = total - (near / (near + far)).log() / len(x)
    return ZERO | dict(zip(body, torch.autograd.grad(total, list(body.values())), strict=True))


def test_moon() -> None:
    """Algorithm 1: l = CE + mu l_con, where z_prev is of the client's model after its last round; in round 1 that is
    the initial model, which is also the global one, so that the two similarities cancel. The server is FedAvg's."""
    mu, tau, clients = 2.0, 0.5, [(x.abs() + 0.5 * i, y) for i, (x, y) in enumerate(CLIENTS)]
    start = START | {A: START[A].abs(), B: START[B].abs()}  # all units are on: a cosine needs a length
    w, last = start, [start] * 3
    for _ in range(3):
        for c, (x, y) in enumerate(clients):
            m, prev = w, last[c]
            for _ in range(2):
                m = add(m, (-0.1, gradient(m, x, y)), (-0.1 * mu, contrast_gradient(m, w, prev, x, tau)))
            last[c] = m
        w = weighted(last, sizes=SIZES)
    end = run(plan_of(MOON(mu=mu, tau=tau), clients, model=model_of(start), rounds=3, epochs=2, lr=0.1))
    close(dict(end.server.w), w)
    for c in range(3):
        close(dict(end.states[c].me.prev), last[c])
