"""FedDyn in NumPy (ICLR 2021, arXiv 2111.04263, Algorithm 1), over three rounds.

The slope of L_k(w) - <g_k, w> + alpha/2 |w - w0|^2 is grad L_k - g_k + alpha (w - w0).
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy64 import CLIENTS, START, add, close, gradient, mean, step
from tiny import plan_of, run

from headwise.methods.feddyn import FedDyn
from headwise.methods.fedprox import FedProx

LR, EPOCHS, ALPHA = 0.5, 2, 0.3


@pytest.mark.parametrize("ratio", [1.0, 0.67])
def test_three_rounds(ratio: float) -> None:
    end = run(plan_of(FedDyn(alpha=ALPHA), rounds=3, epochs=EPOCHS, ratio=ratio))
    w, h = START, add(START, (-1, START))
    g = [h] * 3
    for row in end.rows:
        made = dict[int, dict[str, np.ndarray]]()
        for c in row["clients"]:
            theta = w
            for _ in range(EPOCHS):
                slope = add(gradient(theta, *CLIENTS[c]), (-1, g[c]), (ALPHA, theta), (-ALPHA, w))
                theta = step(theta, slope, LR)
            made[c] = theta
            g[c] = add(g[c], (-ALPHA, theta), (ALPHA, w))
        moves = add(mean([*made.values()]), (-1, w))
        h = add(h, (-ALPHA * len(made) / 3, moves))
        w = add(mean([*made.values()]), (-1 / ALPHA, h))
    close(end.server.w, w)
    close(end.server.h, h)
    for c, state in end.states.items():
        close(state.me.g, g[c])
    assert len({len(row["clients"]) for row in end.rows} | {3}) == (1 if ratio == 1 else 2)


def test_the_server_keeps_the_mean_of_all_gradients() -> None:
    """Eqs. (2) and (3): h = 1/m sum_k g_k at any time, also of clients that were not drawn."""
    end = run(plan_of(FedDyn(alpha=ALPHA), rounds=3, ratio=0.67))
    total = {k: sum(s.me.g[k].double().numpy() for s in end.states.values()) / 3 for k in START}
    close(end.server.h, total)


def test_clients_begin_as_fedprox() -> None:
    """With g = 0, Eq. (1) is FedProx with mu = alpha; the server then goes twice as far: h = -alpha (mean - w)."""
    plan = {"epochs": EPOCHS, "rounds": 1}
    dyn, prox = (run(plan_of(m, **plan)) for m in (FedDyn(alpha=ALPHA), FedProx(mu=ALPHA, weights="clients")))
    expected = {k: 2 * prox.server.w[k].double().numpy() - t for k, t in START.items()}
    close(dyn.server.w, expected)
