"""FedGC and FedGen in NumPy: what the server learns about classes from the clients' heads."""

from __future__ import annotations

import numpy as np
import torch
from numpy64 import (
    BODY,
    CLIENTS,
    HEAD,
    SIZES,
    START,
    Array,
    C,
    V,
    Weights,
    arrays,
    close,
    entropy_slope,
    gradient,
    mean,
    only,
    softmax,
    step,
    train,
)  # fmt: skip
from tiny import plan_of, run
from torch import Tensor

from headwise.engine.server_bench import ServerBench
from headwise.methods.fedgc import FedGC
from headwise.methods.fedgen import FedGen

LR, EPOCHS = 0.5, 2


def correct(heads: dict[int, Weights], rate: float) -> dict[int, Weights]:
    """Row n moves by -rate sum_m p_mn w_m, m != n; p_m is the softmax of w_m . w_n over m and the rows apart."""
    rows = [(i, int(c)) for i in heads for c in np.unique(CLIENTS[i][1])]
    w = np.stack([heads[i][V][c] for i, c in rows])
    slope = np.zeros_like(w)
    for m, (i, c) in enumerate(rows):
        counted = [n for n, (j, d) in enumerate(rows) if n == m or (j != i and d != c)]
        p = softmax((w[counted] @ w[m])[None])[0]
        for n, share in zip(counted, p, strict=True):
            slope[n] += (n != m) * share * w[m]
    moved = {i: {k: t.copy() for k, t in head.items()} for i, head in heads.items()}
    for (i, c), row in zip(rows, w - rate * slope, strict=True):
        moved[i][V][c] = row
    return moved


def test_fedgc_over_three_rounds() -> None:
    method = FedGC(server_lr=0.1)
    end = run(plan_of(method, rounds=3, epochs=EPOCHS, lr=LR))
    body = only(START, BODY)
    heads = {i: only(START, HEAD) for i in range(3)}
    for _ in range(3):
        trained = [train(body | heads[i], *CLIENTS[i], LR, EPOCHS) for i in range(3)]
        body = mean([only(w, BODY) for w in trained], SIZES)
        heads = correct({i: only(w, HEAD) for i, w in enumerate(trained)}, 0.1)
    close(end.server.w, body, atol=1e-5)
    for i in range(3):
        close(end.server.heads[i], heads[i], atol=1e-5)


def generate(net: Weights, y: Array, eps: Array) -> tuple[Array, Array, Array]:
    given = np.concatenate([eps, np.eye(3)[y]], 1)
    hidden = given @ net["0.weight"].T + net["0.bias"]
    return given, hidden, np.maximum(hidden, 0) @ net["2.weight"].T + net["2.bias"]


def generator_step(net: Weights, head: Weights, y: Array, eps: Array, lr: float) -> Weights:
    """Of CE(V f + c, y) with f generated: df = dz V; then through the layer, ReLU and the layer."""
    given, hidden, f = generate(net, y, eps)
    df = entropy_slope(f @ head[V].T + head[C], y) @ head[V]
    dh = df @ net["2.weight"] * (hidden > 0)
    slopes = {
        "0.weight": dh.T @ given, "0.bias": dh.sum(0), "2.weight": df.T @ np.maximum(hidden, 0), "2.bias": df.sum(0),
    }  # fmt: skip
    return {k: t - lr * slopes[k] for k, t in net.items()}


LABELS = np.array([0, 2, 1, 1])
NOISE = np.array([[0.5, -1.0], [1.5, 0.25], [-0.75, 0.0], [2.0, -0.5]])


class Fixed(FedGen):
    """FedGen that always draws the same labels and noise."""

    def _draw(self, shares: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.tensor(LABELS), torch.tensor(NOISE).float()


def test_fedgen_over_two_rounds() -> None:
    method = Fixed(alpha=0.7, noise=2, hidden=4, steps=3, server_lr=0.2)
    plan = plan_of(method, rounds=2, epochs=EPOCHS, lr=LR)
    net = arrays(method.server_init(ServerBench(plan, 0)).net)
    end = run(plan)
    w = START
    for t in (1, 2):
        trained = list[Weights]()
        for x, y in CLIENTS:
            own = w
            for _ in range(EPOCHS):
                slopes = gradient(own, x, y)
                if t > 1:  # in round 1 the server knows no labels yet
                    f = generate(net, LABELS, NOISE)[2]
                    dz = 0.7 * entropy_slope(f @ own[V].T + own[C], LABELS)
                    slopes = {**slopes, V: slopes[V] + dz.T @ f, C: slopes[C] + dz.sum(0)}
                own = step(own, slopes, LR)
            trained.append(own)
        w = mean(trained, SIZES)
        for _ in range(3):
            net = generator_step(net, only(w, HEAD), LABELS, NOISE, 0.2)
    close(end.server.w, w, atol=1e-5)
    close(end.server.net, net, atol=1e-5)
    shares = np.bincount(np.concatenate([y for _, y in CLIENTS])) / sum(SIZES)
    np.testing.assert_allclose(end.server.shares.numpy(), shares, atol=1e-6)


def test_fedgen_draws_labels_as_often_as_clients_hold_them() -> None:
    labels, noise = FedGen(batch=6000)._draw(torch.tensor([0.5, 0.0, 0.5]), torch.Generator().manual_seed(0))
    shares = labels.bincount(minlength=3) / 6000
    np.testing.assert_allclose(shares.numpy(), [0.5, 0.0, 0.5], atol=0.03)
    assert noise.shape == (6000, 16)
