"""FedPAC in NumPy, over two rounds: statistics, both phases of training, centroids and everybody's mixture of heads.

The pull lambda / n sum_i |f_i - c_{y_i}|^2 / K adds 2 lambda (f_i - c) / (K n) to df. The smallest quadratic form on a
simplex of three corners is found by trying all supports: on each, x is proportional to the inverse of Q times ones.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from numpy64 import (
    BODY,
    CLIENTS,
    HEAD,
    SIZES,
    START,
    Array,
    Labels,
    Weights,
    backward,
    class_means,
    close,
    entropy_slope,
    forward,
    mean,
    only,
    step,
    train,
)
from tiny import plan_of, run

from headwise.methods.fedpac import FedPAC, _minimize

LR, HEAD_LR, EPOCHS, LAM = 0.5, 0.3, 2, 0.7
Table = dict[int, Array]


def statistics(w: Weights, x: Array, y: Labels) -> tuple[float, Array]:
    """V_i as in the authors' code, class by class with traces of second moments; h_i."""
    f, v, h = forward(w, x).f, 0.0, np.zeros((3, 2))
    for s in np.unique(y):
        mine, p = f[y == s], (y == s).sum() / len(y)
        h[s] = p * mine.mean(0)
        v += p * np.trace(mine.T @ mine / len(mine)) - p**2 * (mine.mean(0) ** 2).sum()
    return v / len(y), h


def extract(w: Weights, x: Array, y: Labels, table: Table) -> Weights:
    for _ in range(EPOCHS):
        made = forward(w, x)
        pull = [2 * LAM * (f - table.get(s, f)) / (2 * len(y)) for f, s in zip(made.f, y.tolist(), strict=True)]
        w = step(w, backward(w, x, made, entropy_slope(made.z, y), np.stack(pull)), LR, BODY)
    return w


def smallest(Q: Array) -> Array:
    best, value = np.zeros(len(Q)), np.inf
    for size in range(1, len(Q) + 1):
        for support in map(list, combinations(range(len(Q)), size)):
            x = np.linalg.pinv(Q[np.ix_(support, support)]) @ np.ones(size) if size > 1 else np.ones(1)
            x = x / x.sum()
            if (x >= 0).all() and x @ Q[np.ix_(support, support)] @ x < value - 1e-15:
                value = x @ Q[np.ix_(support, support)] @ x
                best = np.zeros(len(Q))
                best[support] = x
    return best


def mixtures(vs: list[float], hs: list[Array]) -> list[Array]:
    every = list[Array]()
    for h_i in hs:
        Q = np.array([[((h_i - a) * (h_i - b)).sum() for b in hs] for a in hs]) + np.diag(vs)
        alpha = smallest(Q)
        alpha[alpha <= 1e-3] = 0
        every.append(alpha / alpha.sum())
    return every


def test_two_rounds() -> None:
    body, heads, table = only(START, BODY), [only(START, HEAD)] * 3, Table()
    for _ in range(2):
        begun = [body | h for h in heads]
        stats = [statistics(w, *c) for w, c in zip(begun, CLIENTS, strict=True)]
        ends = [train(w, *c, HEAD_LR, 1, HEAD) for w, c in zip(begun, CLIENTS, strict=True)]
        ends = [extract(w, *c, table) for w, c in zip(ends, CLIENTS, strict=True)]
        alphas = mixtures([v for v, _ in stats], [h for _, h in stats])
        heads = [mean([only(w, HEAD) for w in ends], alpha) for alpha in alphas]
        each = [(class_means(forward(w, x).f, y), y) for w, (x, y) in zip(ends, CLIENTS, strict=True)]
        for s in range(3):
            owners = [(m[s], (y == s).sum()) for m, y in each if s in m]
            table[s] = sum(n * p for p, n in owners) / sum(n for _, n in owners)
        body = mean([only(w, BODY) for w in ends], SIZES)
    assert any(0.05 < a.max() < 0.95 for a in alphas)  # heads are really mixed
    end = run(plan_of(FedPAC(lam=LAM, head_lr=HEAD_LR), rounds=2, epochs=EPOCHS))
    close(end.server.w, body)
    for c, h in enumerate(heads):
        close(end.server.heads[c], h, atol=1e-5)
    assert end.server.known.all()
    np.testing.assert_allclose(end.server.means.numpy(), np.stack([table[s] for s in range(3)]), atol=2e-6)


@pytest.mark.parametrize("k", [1, 2, 3, 6])
def test_the_smallest_quadratic_form_on_the_simplex(k: int) -> None:
    rng = np.random.default_rng(k)
    factors = rng.standard_normal((20, k, k + 1)) * rng.uniform(0.1, 3, (20, k, 1))
    Q = factors @ factors.transpose(0, 2, 1) + 1e-3 * np.eye(k)
    expected = np.stack([smallest(q) for q in Q])
    np.testing.assert_allclose(_minimize(torch.from_numpy(Q)).numpy(), expected, atol=1e-5)
    assert k < 3 or ((expected > 0).sum(1) < k).any()  # some corners are left out


def test_a_client_that_is_alone_in_a_round_keeps_its_head() -> None:
    end = run(plan_of(FedPAC(lam=0.0, head_lr="local"), rounds=1, ratio=0.34))
    (c,) = end.rows[0]["clients"]
    w = train(train(START, *CLIENTS[c], LR, 1, HEAD), *CLIENTS[c], LR, 1, BODY)
    close(end.server.w | end.server.heads[c], w)
