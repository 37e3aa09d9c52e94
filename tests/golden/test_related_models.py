"""FedMTL and FedAP in NumPy: what clients get of each other's models."""

from __future__ import annotations

import numpy as np
import torch
from numpy64 import CLIENTS, START, Array, Weights, add, close, gradient, mean, step, train
from tiny import Client, plan_of, run
from torch import nn

from headwise.contract.method import Reply
from headwise.engine.server_bench import ServerBench
from headwise.methods.fedap import FedAP, Server, Statistics
from headwise.methods.fedmtl import FedMTL
from headwise.models.split import SplitModel
from headwise.params import Params

LR, EPOCHS, LAM = 0.5, 2, 0.02


def omega_inverse(models: list[Weights]) -> Array:
    """tr(root) root^-1, with root the principal square root of W^T W, by Denman and Beavers' iteration."""
    W = np.stack([np.concatenate([w[k].ravel() for k in START]) for w in models])
    gram = W @ W.T
    gram = gram + 1e-3 * gram.max() * np.eye(len(gram))
    root, other = gram, np.eye(len(gram))
    for _ in range(50):
        root, other = (root + np.linalg.inv(other)) / 2, (other + np.linalg.inv(root)) / 2
    np.testing.assert_allclose(root @ root, gram, atol=1e-9)
    return np.trace(root) * np.linalg.inv(root)


def test_fedmtl() -> None:
    """In round 1 nobody is related; then the slope of lam/2 tr(W Omega^-1 W^T) in w_t is lam sum_s Omega^-1_ts w_s."""
    own, relation = [START] * 3, np.zeros((3, 3))
    for _ in range(3):
        last = own
        own = list[Weights]()
        for t, client in enumerate(CLIENTS):
            w = last[t]
            others = [(LAM * relation[t, s], last[s]) for s in range(3) if s != t]
            for _ in range(EPOCHS):
                w = step(w, add(gradient(w, *client), (LAM * relation[t, t], w), *others), LR)
            own.append(w)
        relation = omega_inverse(own)
    end = run(plan_of(FedMTL(lam=LAM), rounds=3, epochs=EPOCHS))
    for c, w in enumerate(own):
        close(end.states[c].me.w, w, atol=1e-5)
        close(end.server.w[c], w, atol=1e-5)


def test_fedap_without_batchnorm() -> None:
    """All others count the same: half of a client's own last model and a quarter of each other one."""
    models = [train(START, *c, LR, EPOCHS) for c in CLIENTS]
    begun = [mean([models[i]] + [m for j, m in enumerate(models) if j != i], [0.5, 0.25, 0.25]) for i in range(3)]
    models = [train(w, *c, LR, EPOCHS) for w, c in zip(begun, CLIENTS, strict=True)]
    end = run(plan_of(FedAP(), rounds=2, epochs=EPOCHS))
    for c, w in enumerate(models):
        close(end.server.models[c], w)


def samples(n: int, shift: float) -> Client:
    return torch.randn(n, 2, generator=torch.Generator().manual_seed(n)) + shift, torch.arange(n) % 3


SHIFTED = [samples(6, 0.0), samples(7, 0.5), samples(8, 3.0)]


def test_fedap_weights_come_from_what_enters_batchnorm() -> None:
    """One layer: d_ij = sqrt(|mu_i - mu_j|^2 + |sigma_i - sigma_j|^2) of A x + b; w_ij falls with the distance."""
    network = SplitModel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.ReLU()), nn.Linear(2, 3)).eval()
    own = 0.3
    method = FedAP(own=own)
    plan = plan_of(method, SHIFTED, model=network, epochs=1)
    end = run(plan)
    A, b = (t.detach().double().numpy() for t in (network.body[0].weight, network.body[0].bias))
    entering = [x.double().numpy() @ A.T + b for x, _ in SHIFTED]
    d = np.zeros((3, 3))
    for i, p in enumerate(entering):
        for j, q in enumerate(entering):
            d[i, j] = np.sqrt(((p.mean(0) - q.mean(0)) ** 2).sum() + ((p.std(0) - q.std(0)) ** 2).sum())
    np.testing.assert_allclose(end.server.distance.numpy(), np.maximum(d, 1e-6), atol=2e-6)
    models = end.server.models
    sent = method.broadcast(end.server, 0, ServerBench(plan, 2)).w
    near = np.array([1 / d[0, 1], 1 / d[0, 2]])
    weights = [own, *((1 - own) * near / near.sum())]
    assert weights[1] > 2 * weights[2]
    for k, t in sent.items():
        expected = sum(w * models[c][k].double().numpy() for c, w in enumerate(weights))
        np.testing.assert_allclose(t.double().numpy(), expected, atol=2e-6)
    assert not any("body.1" in k for k in sent)  # BatchNorm stays


def test_fedap_clients_that_have_not_trained_take_the_others() -> None:
    method = FedAP()
    central = ServerBench(plan_of(method), 1)
    w = central.init().params()
    stats = [Statistics(Params(n=torch.full((2,), float(c))), Params(n=torch.ones(2))) for c in range(3)]
    server = method.use_census(method.server_init(central), [Reply(c, s, 1) for c, s in enumerate(stats)], central)
    server = Server(server.w, server.distance, {0: w * 2.0, 2: w * 5.0})
    sent = method.broadcast(server, 1, central).w
    for k, t in sent.items():  # as far from both
        torch.testing.assert_close(t, w[k] * 3.5)
