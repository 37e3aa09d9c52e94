"""CCVR in NumPy: the Gaussians of all clients' features, and a head that is retrained on draws from them."""

from __future__ import annotations

import numpy as np
import torch
from byhand import CLIENTS as TENSORS
from numpy64 import CLIENTS, HEAD, SIZES, START, Array, C, V, close, entropy_slope, forward, mean, train
from tiny import bench, plan_of, run

from headwise.authoring import Reply
from headwise.engine.server_bench import ServerBench
from headwise.methods.ccvr import CCVR, _gaussians

LR, EPOCHS = 0.5, 2


def features() -> tuple[Array, Array]:
    """All clients' features under the initial model, and their classes."""
    return np.concatenate([forward(START, x).f for x, _ in CLIENTS]), np.concatenate([y for _, y in CLIENTS])


def replies(method: CCVR) -> list[Reply]:
    plan = plan_of(method, epochs=EPOCHS, lr=LR)
    down = method.server_init(ServerBench(plan, 0))
    ups = [method.local_update(method.client_init(bench(plan, i)), down, bench(plan, i)).up for i in range(3)]
    return [Reply(i, up, len(TENSORS[i][1])) for i, up in enumerate(ups)]


def test_gaussians_are_those_of_all_features_together() -> None:
    f, y = features()
    made = {c: (mu.numpy(), (root @ root.T).numpy()) for c, mu, root in _gaussians(replies(CCVR()))}
    assert set(made) == {1, 2}  # class 0 has one sample
    for c, (mu, sigma) in made.items():
        np.testing.assert_allclose(mu, f[y == c].mean(0), atol=1e-6)
        np.testing.assert_allclose(sigma, np.cov(f[y == c].T), atol=1e-6)


def test_one_round() -> None:
    """The head of the model that was sent takes one step on all draws; the model in training is FedAvg's."""
    method = CCVR(samples=4, head_lr=0.3, batch=100)
    plan = plan_of(method, epochs=EPOCHS, lr=LR)
    end = run(plan)
    close(end.server.w, mean([train(START, *c, LR, EPOCHS) for c in CLIENTS], SIZES), atol=1e-5)
    rng = ServerBench(plan, 1).rng
    gaussians = _gaussians(replies(method))
    drawn = [mu.numpy() + (torch.randn(4, 2, generator=rng).double() @ root.T).numpy() for _, mu, root in gaussians]
    f = np.concatenate(drawn)
    y = np.repeat([c for c, _, _ in gaussians], 4)
    dz = entropy_slope(f @ START[V].T + START[C], y)
    head = {V: START[V] - 0.3 * dz.T @ f, C: START[C] - 0.3 * dz.sum(0)}
    close(end.server.calibrated, {k: t for k, t in START.items() if k not in HEAD} | head, atol=1e-5)


def test_without_draws_it_is_fedavg_one_round_behind() -> None:
    end = run(plan_of(CCVR(samples=0), rounds=2, epochs=EPOCHS, lr=LR))
    close(end.server.calibrated, mean([train(START, *c, LR, EPOCHS) for c in CLIENTS], SIZES), atol=1e-5)
