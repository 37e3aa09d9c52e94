"""APPLE by hand (arXiv 2110.08394, Algorithm 1).

The personal model is w = sum_j p_j c_j over all core models c_j; with g = dL/dw, the chain rule gives for the client's
own core model dL/dc_i = p_i g, and for its relationship dL/dp_j = <g, c_j>, to which the pull adds
mu lambda(r) (p_j - p_0j), lambda(r) = (cos(pi r / L) + 1) / 2 until r = L. Both are taken before either changes.
p_0j is the share of client j in all samples, where p starts, too. Core models learn at eta_1, the model's rate.
"""

from __future__ import annotations

import math

import pytest
import torch
from byhand import START, Weights, close, drawn, gradient
from tiny import bench, floats, plan_of, run
from torch.testing import assert_close

from headwise.contract.method import Reply
from headwise.engine.server_bench import ServerBench
from headwise.methods.apple import APPLE, Down, Own, Shared

N, ME, LR, EPOCHS, ROUNDS = 3, 1, 0.1, 2, 20
SIZES = [6, 3, 9]
CLIENTS = [(torch.randn(n, 2, generator=torch.Generator().manual_seed(n)), torch.arange(n) % 3) for n in SIZES]
P_0 = [1 / 3, 1 / 6, 1 / 2]
P = [0.2, 0.5, 0.4]


def mixture(p: list[float], cores: list[Weights]) -> Weights:
    return {k: sum(x * c[k] for x, c in zip(p, cores, strict=True)) for k in START}


@pytest.mark.parametrize(
    ("method", "t", "pull"),
    [
        (APPLE(relation_lr=0.05), 1, 0.1),
        (APPLE(relation_lr=0.05), 3, 0.05),  # r = 2 is half of L = 0.2 * 20
        (APPLE(relation_lr=0.05), 5, 0.0),
        (APPLE(relation_lr=0.05, mu=2.0, L=1.0, core_lr="scaled"), 11, 1.0),
        (APPLE(relation_lr=0.0), 2, 0.1 * (math.cos(math.pi / 4) + 1) / 2),
        (APPLE(L=0.0), 1, 0.0),
    ],
    ids=repr,
)
def test_client_half(method: APPLE, t: int, pull: float) -> None:
    """Full batches; core models step by lr, times N where that is asked for."""
    cores, p = [drawn(c) for c in range(N)], P
    local = bench(plan_of(method, CLIENTS, rounds=ROUNDS, lr=LR, epochs=EPOCHS), ME, t)
    down = Down({j: floats(c) for j, c in enumerate(cores) if j != ME}, torch.tensor(P_0))
    me = Own(floats(cores[ME]), torch.tensor(P))
    update = method.local_update(me, down, local)
    rate = LR * N if method.core_lr == "scaled" else LR
    for _ in range(EPOCHS):
        g = gradient(mixture(p, cores), *CLIENTS[ME])
        slopes = [sum((g[k] * c[k]).sum().item() for k in g) + pull * (p[j] - P_0[j]) for j, c in enumerate(cores)]
        cores[ME] = {k: c - rate * p[ME] * g[k] for k, c in cores[ME].items()}
        p = [x - method.relation_lr * s for x, s in zip(p, slopes, strict=True)]
    close(dict(update.up.w), cores[ME])
    close(dict(update.me.core), cores[ME])
    assert_close(update.me.p.double(), torch.tensor(p).double(), atol=2e-6, rtol=0)
    close(update.model.state_dict(), mixture(p, cores))


def test_the_personal_model_is_the_combination() -> None:
    """Core models of clients that have not trained are the initial one."""
    mine, other = drawn(0), drawn(2)
    local = bench(plan_of(APPLE(), CLIENTS), ME)
    model = APPLE().personalize(Own(floats(mine), torch.tensor(P)), Down({2: floats(other)}, torch.tensor(P_0)), local)
    close(model.state_dict(), mixture(P, [START, mine, other]))


def test_server_half() -> None:
    """The server keeps the last core model of each client and sends a client those of the others."""
    method, central = APPLE(), ServerBench(plan_of(APPLE(), CLIENTS), 1)
    server = method.server_init(central)
    for c, seed in ((2, 0), (0, 1), (2, 3)):
        server = method.aggregate(server, [Reply(c, Shared(floats(drawn(seed))), 6)], central)
    assert list(server.cores) == [0, 2]
    sent = method.broadcast(server, 2, central).cores
    assert list(sent) == [0]
    assert_close(method.broadcast(server, 1, central).p_0, torch.tensor(P_0))
    close(dict(sent[0]), drawn(1))
    close(dict(method.broadcast(server, 1, central).cores[2]), drawn(3))


def test_beginning() -> None:
    """Shares of equal models are the initial model. Then all take one step along p_i g, p_i being their share."""
    plan = plan_of(APPLE(relation_lr=0.0), CLIENTS, lr=LR)
    local = bench(plan, ME)
    first = APPLE().client_init(local)
    assert first.p is None
    close(APPLE().personalize(first, Down({}, torch.tensor(P_0)), local).state_dict(), START)
    end = run(plan)
    for c, client in enumerate(CLIENTS):
        g = gradient(START, *client)
        close(dict(end.server.cores[c]), {k: t - LR * P_0[c] * g[k] for k, t in START.items()})
        assert_close(end.states[c].me.p, torch.tensor(P_0))
