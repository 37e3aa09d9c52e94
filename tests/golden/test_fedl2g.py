"""FedL2G in NumPy, over two rounds: guided training, and the slopes of the guiding vectors.

Guided training adds 1/(n K) sum_i |f_i - v_{y_i}|^2 to the loss, so 2 (f_i - v) / (n K) to df_i. With J_i the
derivative of f_i in the body, a step moves the body by lr 2/(n K) sum_i J_i^T v_{y_i} and terms without v. With g the
slope of the quiz loss after that step, its slope in v_c is therefore lr 2/(n K) sum_{i in c} J_i g. In this network
J_i g = [a_i > 0] * (g_A x_i + g_b).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy64 import START, A, Array, B, Labels, Weights, backward, close, entropy_slope, forward, gradient, step
from tiny import Client, plan_of, run

from headwise.contract.method import Reply
from headwise.engine.client.client_bench import ClientBench
from headwise.engine.server_bench import ServerBench
from headwise.methods.fedl2g import FedL2G, Guides, Slopes
from headwise.params import Params

LR, EPOCHS, SERVER_LR = 0.5, 2, 0.8
SIZES = (5, 10)


def client(n: int) -> Client:
    return torch.randn(n, 2, generator=torch.Generator().manual_seed(n)), torch.arange(n) % (2 if n == 5 else 3)


CLIENTS = [client(n) for n in SIZES]


def guided(w: Weights, x: Array, y: Labels, v: Array) -> Weights:
    made = forward(w, x)
    return backward(w, x, made, entropy_slope(made.z, y), 2 * (made.f - v[y]) / made.f.size)


def slopes(w: Weights, study: tuple[Array, Labels], quiz: tuple[Array, Labels], v: Array) -> dict[int, Array]:
    x, y = study
    g = gradient(step(w, guided(w, x, y, v), LR), *quiz)
    along = (forward(w, x).a > 0) * (x @ g[A].T + g[B])
    return {int(c): LR * 2 / along.size * along[y == c].sum(0) for c in np.unique(y)}


def parts(c: int, plan: object) -> tuple[tuple[Array, Labels], tuple[Array, Labels]]:
    """What the bench holds out is the quiz; the rest is trained on, in one batch."""
    local = ClientBench(plan, c, 1, purpose="fit", kept=Params(), trained=0)  # type: ignore[arg-type]
    _, (xq, yq) = local.hold_out(0.2)
    x, y = CLIENTS[c]
    rest = [i for i in range(len(y)) if not any(torch.equal(x[i], q) for q in xq)]
    assert len(yq) == len(y) // 5 and len(rest) + len(yq) == len(y)
    return (x[rest].double().numpy(), y[rest].numpy()), (xq.double().numpy(), yq.numpy())


def test_two_rounds() -> None:
    method = FedL2G(server_lr=SERVER_LR)
    plan = plan_of(method, CLIENTS, rounds=2, epochs=EPOCHS, lr=LR)
    v = method.server_init(ServerBench(plan, 0)).v.double().numpy()
    first, own = v, [START] * 2
    for _ in range(2):
        sent = list[dict[int, Array]]()
        for c in range(2):
            study, quiz = parts(c, plan)
            for _ in range(EPOCHS):
                own[c] = step(own[c], guided(own[c], *study, v), LR)
            sent.append(slopes(own[c], study, quiz, v))
        moves = {c: np.mean([s[c] for s in sent if c in s], axis=0) for c in range(3)}
        v = np.stack([v[c] - SERVER_LR * moves[c] for c in range(3)])
    end = run(plan)
    for c, w in enumerate(own):
        close(end.states[c].me.w, w)
    np.testing.assert_allclose(end.server.v.numpy(), v, atol=2e-6)
    assert np.abs(v - first).max() > 1e-3


def test_the_slope_is_that_of_the_quiz_loss() -> None:
    """By differences: the quiz loss after a step, with each entry of v a little larger and smaller."""
    (x, y), (xq, yq) = parts(1, plan_of(FedL2G(), CLIENTS))
    v = np.arange(6.0).reshape(3, 2) / 4

    def quiz_loss(v: Array) -> float:
        z = forward(step(START, guided(START, x, y, v), LR), xq).z
        return float(np.mean([np.log(np.exp(row).sum()) - row[s] for row, s in zip(z, yq, strict=True)]))

    derived = slopes(START, (x, y), (xq, yq), v)
    for c in range(3):
        for k in range(2):
            up, down = v.copy(), v.copy()
            up[c, k] += 1e-5
            down[c, k] -= 1e-5
            numeric = (quiz_loss(up) - quiz_loss(down)) / 2e-5
            np.testing.assert_allclose(derived[c][k], numeric, atol=1e-8)


def test_warming_up_trains_the_guides_only() -> None:
    end = run(plan_of(FedL2G(warm_up=1, server_lr=SERVER_LR), CLIENTS, epochs=EPOCHS))
    for c in range(2):
        close(end.states[c].me.w, START)
    method = FedL2G()
    central = ServerBench(plan_of(method, CLIENTS), 1)
    start = method.server_init(central)
    assert (end.server.v - start.v).abs().max() > 0
    sent = Slopes(torch.tensor([2]).int(), torch.ones(1, 2))
    moved = FedL2G(server_lr=0.5).aggregate(Guides(start.v), [Reply(0, sent, 4)], central)
    torch.testing.assert_close(start.v - moved.v, torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.5, 0.5]]))
