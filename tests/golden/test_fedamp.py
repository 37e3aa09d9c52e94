"""FedAMP by hand (arXiv 2007.03797, Algorithm 1).

With A(x) = 1 - e^{-x/s}, A'(x) = e^{-x/s} / s. Server: a_j = alpha A'(||w_i - w_j||^2) for j other than i, scaled down
to sum to one if they exceed it, and u_i = (1 - sum a_j) w_i + sum a_j w_j. Client: the gradient of
L(w) + lam / (2 alpha) ||w - u_i||^2 is dL/dw + lam / alpha (w - u_i).
"""

from __future__ import annotations

import math

import pytest
import torch
from byhand import START, Weights, close, drawn, gradient
from tiny import bench, floats, plan_of

from headwise.contract.averaging import Shared
from headwise.contract.method import Reply
from headwise.engine.server_bench import ServerBench
from headwise.methods.fedamp import FedAMP, Models, OwnModel

LR, EPOCHS, SIZES = 0.2, 3, [5, 4, 6]
CLIENTS = [(torch.randn(n, 2, generator=torch.Generator().manual_seed(n)), torch.arange(n) % 3) for n in SIZES]


def near(seed: int) -> Weights:
    return {k: START[k] + 0.2 * t for k, t in drawn(seed).items()}


def distance(a: Weights, b: Weights) -> float:
    """||a - b||^2."""
    return sum(((a[k] - b[k]) ** 2).sum().item() for k in a)


def cloud(w_i: Weights, others: list[Weights], alpha: float, sigma: float) -> Weights:
    a = [alpha * math.exp(-distance(w_i, w) / sigma) / sigma for w in others]
    if sum(a) > 1:
        a = [x / sum(a) for x in a]
    return {k: (1 - sum(a)) * t + sum(x * w[k] for x, w in zip(a, others, strict=True)) for k, t in w_i.items()}


@pytest.mark.parametrize(("alpha", "sigma", "beyond"), [(0.3, 0.5, False), (0.1, 2.0, False), (10.0, 10.0, True)])
def test_server_half(alpha: float, sigma: float, beyond: bool) -> None:
    """Weights below one in sum, at two widths of attention, and above it."""
    method, models = FedAMP(alpha=alpha, sigma=sigma), [near(c) for c in range(3)]
    central = ServerBench(plan_of(method, CLIENTS), 2)
    replies = [Reply(c, Shared(floats(w)), SIZES[c]) for c, w in enumerate(models)]
    server = method.aggregate(Models({1: floats(near(9))}), replies, central)
    for i, w_i in enumerate(models):
        others = [w for j, w in enumerate(models) if j != i]
        total = sum(alpha * math.exp(-distance(w_i, w) / sigma) / sigma for w in others)
        assert (total > 1) is beyond
        close(dict(method.broadcast(server, i, central).w), cloud(w_i, others, alpha, sigma))


def test_a_client_that_never_trained_has_the_initial_model_and_counts_for_nobody() -> None:
    method, w = FedAMP(), near(0)
    central = ServerBench(plan_of(method, CLIENTS), 2)
    close(dict(method.broadcast(Models({}), 2, central).w), START)
    close(dict(method.broadcast(Models({0: floats(w)}), 2, central).w), cloud(START, [w], 10.0, 10.0))
    close(dict(method.broadcast(Models({0: floats(w)}), 0, central).w), w)


@pytest.mark.parametrize(
    ("method", "pull", "from_cloud"),
    [
        (FedAMP(), 0.1, False),
        (FedAMP(lam=3.0, alpha=2.0), 1.5, False),
        (FedAMP(lam=3.0, alpha=2.0, start="cloud"), 1.5, True),
        (FedAMP(lam=3.0, detach_reg=True), 0.0, False),
        (FedAMP(lam=0.0), 0.0, False),
    ],
    ids=repr,
)
def test_client_half(method: FedAMP, pull: float, from_cloud: bool) -> None:
    """w <- w - lr (dL/dw + lam / alpha (w - u)), E times, full batches; without its gradient, the term is nothing."""
    mine, u = near(1), near(2)
    local = bench(plan_of(method, CLIENTS, lr=LR, epochs=EPOCHS), 0)
    update = method.local_update(OwnModel(floats(mine)), Shared(floats(u)), local)
    w = u if from_cloud else mine
    for _ in range(EPOCHS):
        g = gradient(w, *CLIENTS[0])
        w = {k: t - LR * (g[k] + pull * (t - u[k])) for k, t in w.items()}
    close(dict(update.up.w), w)
    close(dict(update.me.w), w)
    close(update.model.state_dict(), w)
    close(method.personalize(OwnModel(floats(mine)), Shared(floats(u)), local).state_dict(), mine)
