"""Two rounds of FedRoD by hand (ICLR 2022, arXiv 2107.00778, Section 4: two losses, two predictors).

Balanced softmax: q_k = N_k e^{z_k} / sum_j N_j e^{z_j}, L = -1/n sum log q_y, so dL/dz = (q - onehot(y)) / n,
and 0 for a class with N_k = 0. Personal loss: r = softmax(z + P f + d) with z and f held fixed, so that its gradient
(r - onehot(y)) / n with respect to the sum reaches P and d alone. The other derivatives are those of `byhand`.
"""

from __future__ import annotations

import pytest
import torch
from byhand import CLIENTS, HEAD, START, A, B, C, V, Weights, close, features, weighted
from tiny import bench, plan_of, run
from torch import Tensor

from headwise.contract.averaging import Shared
from headwise.engine.server_bench import ServerBench
from headwise.methods.fedrod import FedRoD, Own
from headwise.params import Params

LR, EPOCHS = 0.5, 2


def step(w: Weights, p: Weights, x: Tensor, y: Tensor) -> tuple[Weights, Weights]:
    x, n, onehot = x.double(), len(y), torch.eye(3).double()[y]
    counts = onehot.sum(0)  # full batches: all that the client holds
    f = features(w, x)
    z = f @ w[V].T + w[C]
    q = counts * z.exp()
    dz = (q / q.sum(1, keepdim=True) - onehot) / n
    da = (dz @ w[V]) * (f > 0)
    r = (z + f @ p[V].T + p[C]).exp()
    dp = (r / r.sum(1, keepdim=True) - onehot) / n
    slope = {A: da.T @ x, B: da.sum(0), V: dz.T @ f, C: dz.sum(0)}
    return {k: t - LR * slope[k] for k, t in w.items()}, {V: p[V] - LR * dp.T @ f, C: p[C] - LR * dp.sum(0)}


def loss(w: Weights, p: Weights, x: Tensor, y: Tensor) -> float:
    """Cross-entropy of the sum of both heads."""
    f = features(w, x)
    z = f @ w[V].T + w[C] + f @ p[V].T + p[C]
    return float((z.exp().sum(1).log() - z[torch.arange(len(y)), y]).mean())


def test_two_rounds() -> None:
    """Clients hold one, two (equal) and two (1 and 2 samples) of three classes; the server weighs them 1 : 2 : 3."""
    w, heads = START, [{k: START[k] for k in HEAD} for _ in CLIENTS]
    for _ in range(2):
        parts: list[Weights] = []
        for c, (x, y) in enumerate(CLIENTS):
            mine = w
            for _ in range(EPOCHS):
                mine, heads[c] = step(mine, heads[c], x, y)
            parts.append(mine)
        w = weighted(parts)
    end = run(plan_of(FedRoD(), rounds=2, epochs=EPOCHS))
    close(dict(end.server.w), w)
    for c, p in enumerate(heads):
        close(dict(end.states[c].me.p), p)
    last = [line for line in end.lines if line["round"] == 2]
    pre = [line["pre"]["test"]["loss"] for line in last]
    assert pre == pytest.approx([loss(w, heads[c], *CLIENTS[c]) for c in range(3)], abs=1e-5)
    post = [line["post"]["test"]["loss"] for line in last]
    assert post == pytest.approx([loss(parts[c], heads[c], *CLIENTS[c]) for c in range(3)], abs=1e-5)


def test_a_client_of_one_class_moves_nothing_generic() -> None:
    """Its balanced softmax has one class, of probability 1: its upload is what it was sent, bit for bit."""
    w = Params({k: t.float() for k, t in START.items()})
    update = FedRoD().local_update(Own(w.select("head.")), Shared(w), bench(plan_of(FedRoD()), 0))
    assert all(torch.equal(t, w[k]) for k, t in update.up.w.items())
    assert not torch.equal(update.me.p[V], w[V])


def test_the_counts_are_those_of_all_samples_whatever_the_batches() -> None:
    """Batches of two, the odd one dropped: class 1 of the last client has one sample, and stays in the softmax."""
    plan = plan_of(FedRoD(), batch=2, drop_last=True)
    for t in range(1, 6):
        w = Params({k: t.float() for k, t in START.items()})
        update = FedRoD().local_update(Own(w.select("head.")), Shared(w), bench(plan, 2, t))
        assert (update.up.w[V][1] - w[V][1]).abs().max() > 1e-3  # its row has a gradient whichever batch is drawn
        assert torch.equal(update.up.w[V][0], w[V][0])  # absent: none


def test_global_model_is_the_generic_branch() -> None:
    method, central = FedRoD(), ServerBench(plan_of(FedRoD()), 1)
    model = method.global_model(method.server_init(central), central)
    assert model is not None
    close(model.state_dict(), START)
