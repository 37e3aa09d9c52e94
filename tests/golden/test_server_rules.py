"""q-FedAvg, FedADMM, pFedSim and CFL in NumPy: what their servers make of the clients' models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy64 import (
    CLIENTS,
    HEAD,
    SIZES,
    START,
    Array,
    V,
    Weights,
    add,
    close,
    forward,
    gradient,
    mean,
    only,
    softmax,
    squared,
    step,
    train,
)
from tiny import plan_of, run

from headwise.contract.method import Reply
from headwise.engine.server_bench import ServerBench
from headwise.methods.cfl import CFL, Change, Clusters
from headwise.methods.fedadmm import FedADMM
from headwise.methods.pfedsim import PFedSim, Server
from headwise.methods.q_fedavg import QFedAvg
from headwise.params import Params

LR, EPOCHS = 0.5, 2
ZERO: Weights = {k: 0 * t for k, t in START.items()}


def entropy(w: Weights, c: int) -> float:
    x, y = CLIENTS[c]
    return float(-np.log(softmax(forward(w, x).z)[np.arange(len(y)), y]).mean())


@pytest.mark.parametrize("q", [0.5, 1.0, 2.0])
def test_q_fedavg(q: float) -> None:
    """Algorithm 2 with L = 1 / eta, where F_k is the loss under the model that was sent."""
    w, L = START, 1 / LR
    for _ in range(2):
        numerator, denominator = ZERO, 0.0
        for c, client in enumerate(CLIENTS):
            F, D = entropy(w, c), add(ZERO, (L, w), (-L, train(w, *client, LR, EPOCHS)))
            numerator = add(numerator, (F**q, D))
            denominator += q * F ** (q - 1) * squared(D) + L * F**q
        w = add(w, (-1 / denominator, numerator))
    close(run(plan_of(QFedAvg(q=q), rounds=2, epochs=EPOCHS)).server.w, w)


@pytest.mark.parametrize("start", ["global", "own"])
@pytest.mark.parametrize("ratio", [1.0, 0.67])
def test_fedadmm(start: Any, ratio: float) -> None:
    rho, eta = 0.4, 0.7
    method = FedADMM(rho=rho, server_lr=eta, start=start)
    end = run(plan_of(method, rounds=3, epochs=EPOCHS, ratio=ratio))
    theta, own, dual = START, [START] * 3, [ZERO] * 3
    for row in end.rows:
        sent = list[Weights]()
        for c in row["clients"]:
            old = theta if start == "global" else own[c]
            w = old
            for _ in range(EPOCHS):
                w = step(w, add(gradient(w, *CLIENTS[c]), (1, dual[c]), (rho, w), (-rho, theta)), LR)
            y = add(dual[c], (rho, w), (-rho, theta))
            sent.append(add(w, (-1, old), (1 / rho, y), (-1 / rho, dual[c])))
            own[c], dual[c] = w, y
        theta = add(theta, (eta, mean(sent)))
    close(end.server.w, theta)
    for c, state in end.states.items():
        close(state.me.w, own[c])
        close(state.me.y, dual[c])


def test_fedadmm_keeps_the_mean_of_all_augmented_models() -> None:
    """With everybody in every round and a step of 1, theta is the mean of w_i + y_i / rho, as ADMM has it."""
    end = run(plan_of(FedADMM(rho=0.4, start="own"), rounds=3, epochs=EPOCHS))
    augmented = [{k: (s.me.w[k] + s.me.y[k] / 0.4).double().numpy() for k in START} for s in end.states.values()]
    close(end.server.w, mean(augmented))


def cosine(a: Array, b: Array) -> float:
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def test_pfedsim() -> None:
    """One round of FedAvg, then two in which bodies are mixed by -log(1 - similarity) of the classifiers' rows."""
    w = mean([train(START, *c, LR, EPOCHS) for c in CLIENTS], SIZES)
    models = [train(w, *c, LR, EPOCHS) for c in CLIENTS]
    for _ in range(2):
        phi = np.array(
            [[max(0, np.mean([cosine(*r) for r in zip(a[V], b[V], strict=True)])) for b in models] for a in models]
        )
        phi = np.minimum(phi, 0.9999)
        np.fill_diagonal(phi, 0.9999)
        begun = [mean(models, -np.log(1 - row)) | only(own, HEAD) for row, own in zip(phi, models, strict=True)]
        models = [train(v, *c, LR, EPOCHS) for v, c in zip(begun, CLIENTS, strict=True)]
    end = run(plan_of(PFedSim(warm_up=0.25), rounds=4, epochs=EPOCHS))
    close(end.server.w, w)
    for c, v in enumerate(models):
        close(end.server.models[c], v, atol=1e-5)
    assert 0 < phi[0, 1] < 0.9


def test_pfedsim_clients_that_never_met_do_not_mix() -> None:
    method = PFedSim(warm_up=0.0)
    central = ServerBench(plan_of(method), 1)
    w = central.init().params()
    models = {c: w * (1 + c) for c in range(3)}
    server = Server(w, models, torch.zeros(3, 3))
    sent = method.broadcast(server, 1, central).w
    assert all(torch.equal(t, models[1][k]) for k, t in sent.items())


def changes(*directions: tuple[float, float]) -> list[Reply[Change]]:
    """Each client's change: two numbers of the model, all else 0."""
    made = list[Reply[Change]]()
    for c, (a, b) in enumerate(directions):
        d = plan_of().models[0].params().zeros()
        d["head.bias"][:2] = torch.tensor([a, b])
        made.append(Reply(c, Change(d), 1 + c))
    return made


def clusters_of(method: CFL, replies: list[Reply[Change]], n: int) -> Clusters:
    central = ServerBench(plan_of(method, [CLIENTS_AS_TENSORS[0]] * n), 1)
    return method.aggregate(method.server_init(central), replies, central)


CLIENTS_AS_TENSORS = [(torch.from_numpy(x).float(), torch.from_numpy(y)) for x, y in CLIENTS]
APART = ((1.0, 0.1), (0.9, -0.1), (-1.0, 0.2), (-0.8, 0.0), (1.1, 0.0))


def test_cfl_splits_clients_whose_changes_point_apart() -> None:
    """Mean (0.24, 0.04), longest 1.1: below 0.4 and above 0.8. Each group then moves by its own plain mean."""
    end = clusters_of(CFL(eps_mean=0.4, eps_max=0.8), changes(*APART), 5)
    assert end.cluster.tolist() == [0, 0, 1, 1, 0]
    start = START["head.bias"]
    for c, members in enumerate(((0, 1, 4), (2, 3))):
        expected = start + np.array([*np.mean([APART[i] for i in members], axis=0), 0])
        np.testing.assert_allclose(end.models[c]["head.bias"].numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("options", [{"eps_mean": 0.2}, {"eps_max": 1.2}, {"begin": 1}])
def test_cfl_does_not_split_otherwise(options: dict[str, Any]) -> None:
    end = clusters_of(CFL(**{"eps_mean": 0.4, "eps_max": 0.8, **options}), changes(*APART), 5)
    assert end.cluster.tolist() == [0] * 5
    expected = START["head.bias"] + np.array([*np.mean(APART, axis=0), 0])
    np.testing.assert_allclose(end.models[0]["head.bias"].numpy(), expected, atol=1e-6)


def test_cfl_links_groups_by_their_least_similar_members() -> None:
    """Five directions; written a second time, by distances and with sets."""
    angles = np.deg2rad([0, 35, 72, 115, 250])
    end = clusters_of(CFL(eps_mean=9.0, eps_max=0.0), changes(*zip(np.cos(angles), np.sin(angles), strict=True)), 5)
    assert end.cluster.tolist() == complete_linkage(angles)


def complete_linkage(angles: Array) -> list[int]:
    """With distances 1 - cosine; the smaller group has number 1."""
    groups = [{i} for i in range(len(angles))]
    while len(groups) > 2:
        apart = {
            (i, j): max(1 - np.cos(angles[a] - angles[b]) for a in groups[i] for b in groups[j])
            for i in range(len(groups))
            for j in range(i + 1, len(groups))
        }
        i, j = min(apart, key=lambda pair: apart[pair])
        groups = [g for k, g in enumerate(groups) if k not in (i, j)] + [groups[i] | groups[j]]
    smaller = min(groups, key=len)
    return [int(i in smaller) for i in range(len(angles))]


def test_cfl_two_rounds_of_training_without_a_split() -> None:
    """Full rounds: one model that moves by the plain mean of the changes."""
    w = START
    for _ in range(2):
        w = mean([train(w, *c, LR, EPOCHS) for c in CLIENTS])
    end = run(plan_of(CFL(eps_mean=0.0), rounds=2, epochs=EPOCHS))
    close(end.server.models[0], w)
    assert isinstance(end.server.changes[0], Params)
