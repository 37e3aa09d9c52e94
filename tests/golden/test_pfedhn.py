"""pFedHN in NumPy, over three rounds with some of the clients.

With h0 = W0 v + b0, h1 = W1 max(h0, 0) + b1 and theta_k = O_k h1 + o_k, the slope of -<theta, d> follows by the chain
rule: dO_k = -d_k h1^T, do_k = -d_k, dh1 = -sum_k O_k^T d_k, dW1 = dh1 max(h0, 0)^T, dh0 = W1^T dh1 * [h0 > 0],
dW0 = dh0 v^T, dv = W0^T dh0.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy64 import CLIENTS, START, Array, Weights, arrays, close, train
from tiny import plan_of, run

from headwise.engine.server_bench import ServerBench
from headwise.methods.pfedhn import PFedHN

LR, EPOCHS, SERVER_LR, EMBED_LR = 0.5, 2, 0.3, 0.2


def layers(net: Weights, v: Array) -> tuple[Array, Array]:
    h0 = net["0.0.weight"] @ v + net["0.0.bias"]
    return h0, net["0.1.weight"] @ np.maximum(h0, 0) + net["0.1.bias"]


def made(net: Weights, v: Array) -> Weights:
    _, h1 = layers(net, v)
    return {
        k: (net[f"1.{i}.weight"] @ h1 + net[f"1.{i}.bias"]).reshape(t.shape) for i, (k, t) in enumerate(START.items())
    }


def slopes(net: Weights, v: Array, d: Weights) -> tuple[Weights, Array]:
    h0, h1 = layers(net, v)
    found, dh1 = dict[str, Array](), np.zeros_like(h1)
    for i, k in enumerate(START):
        found[f"1.{i}.weight"] = -np.outer(d[k].ravel(), h1)
        found[f"1.{i}.bias"] = -d[k].ravel()
        dh1 -= net[f"1.{i}.weight"].T @ d[k].ravel()
    dh0 = net["0.1.weight"].T @ dh1 * (h0 > 0)
    found |= {"0.1.weight": np.outer(dh1, np.maximum(h0, 0)), "0.1.bias": dh1}
    found |= {"0.0.weight": np.outer(dh0, v), "0.0.bias": dh0}
    return found, net["0.0.weight"].T @ dh0


@pytest.mark.parametrize("ratio", [1.0, 0.67])
def test_three_rounds(ratio: float) -> None:
    method = PFedHN(embed=3, hidden=5, server_lr=SERVER_LR, embed_lr=EMBED_LR)
    plan = plan_of(method, rounds=3, epochs=EPOCHS, ratio=ratio, lr=LR)
    first = method.server_init(ServerBench(plan, 0))
    net, table = arrays(first.net), first.table.double().numpy().copy()
    end = run(plan)
    for row in end.rows:
        every = list[Weights]()
        for c in row["clients"]:
            theta = made(net, table[c])
            trained = train(theta, *CLIENTS[c], LR, EPOCHS)
            slope, dv = slopes(net, table[c], {k: trained[k] - theta[k] for k in theta})
            table[c] = table[c] - EMBED_LR * dv
            every.append(slope)
        net = {k: t - SERVER_LR * sum(s[k] for s in every) / len(every) for k, t in net.items()}
    close(end.server.net, net, atol=1e-5)
    np.testing.assert_allclose(end.server.table.numpy(), table, atol=1e-5)
    close(method.broadcast(end.server, 1, ServerBench(plan, 3)).w, made(net, table[1]), atol=1e-5)


def test_a_new_client_has_the_mean_embedding() -> None:
    method = PFedHN(embed=3, hidden=5)
    central = ServerBench(plan_of(method), 1)
    server = method.server_init(central)
    net, table = arrays(server.net), server.table.double().numpy()
    close(method.broadcast(server, 7, central).w, made(net, table.mean(0)))
