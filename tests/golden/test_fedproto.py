"""FedProto by hand (AAAI 2022, arXiv 2105.00243, Eqs. (3), (4), (6)-(8)), over two rounds.

The pull of Eq. (8) is lam / n sum_i [class y_i has a prototype] 1/K |f_i - C_{y_i}|^2 with K = 2 features, so it adds
2 lam (f - C) / (K n) to dL/df; all else is `byhand.gradient`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch
from byhand import CLIENTS, START, A, B, C, V, Weights, close, features, gradient
from tiny import bench, model_of, plan_of, run
from torch import Tensor
from torch.testing import assert_close

from headwise.contract.method import Reply
from headwise.engine.server_bench import ServerBench
from headwise.methods.fedproto import FedProto, Known, OwnModel, Prototypes
from headwise.params import Params

LR, EPOCHS, LAM = 0.5, 2, 0.7
Table = dict[int, Tensor]


def train(w: Weights, x: Tensor, y: Tensor, table: Table) -> Weights:
    for _ in range(EPOCHS):
        g, f = gradient(w, x, y), features(w, x)
        pull = [
            2 * LAM * (f[i] - table[s]) / (2 * len(y)) if s in table else 0 * f[i] for i, s in enumerate(y.tolist())
        ]
        da = torch.stack(pull) * (f > 0)
        g = {**g, A: g[A] + da.T @ x.double(), B: g[B] + da.sum(0)}
        w = {k: t - LR * g[k] for k, t in w.items()}
    return w


def prototypes(w: Weights, x: Tensor, y: Tensor) -> Table:
    """Eq. (3)."""
    f = features(w, x)
    return {s: f[y == s].sum(0) / (y == s).sum() for s in sorted(set(y.tolist()))}


def merged(each: list[Table], weights: str) -> Table:
    """Eq. (6): class 1 comes from clients 1 and 2 with one sample each, class 2 with one and two samples."""
    counts = [{0: 1}, {1: 1, 2: 1}, {1: 1, 2: 2}]
    table: Table = {}
    for s in range(3):
        held = [(1 if weights == "equal" else counts[c][s], p[s]) for c, p in enumerate(each) if s in p]
        table[s] = sum((n * p for n, p in held), start=torch.zeros(2).double()) / sum(n for n, _ in held)
    return table


@pytest.mark.parametrize("weights", ["samples", "equal"])
def test_two_rounds(weights: str) -> None:
    """In the first round there are no prototypes: every client trains alone."""
    table, models, each = Table(), [START] * 3, list[Table]()
    for _ in range(2):
        models = [train(w, *client, table) for w, client in zip(models, CLIENTS, strict=True)]
        each = [prototypes(w, *client) for w, client in zip(models, CLIENTS, strict=True)]
        table = merged(each, weights)
    end = run(plan_of(FedProto(lam=LAM, weights=weights), rounds=2, epochs=EPOCHS))
    for c, w in enumerate(models):
        close(dict(end.states[c].me.w), w)
    assert end.server.known.all()
    assert_close(end.server.means.double(), torch.stack([table[s] for s in range(3)]), atol=2e-6, rtol=0)
    rows, numbers = 1 + 2 + 2, {"samples": 2 + 2, "equal": 2 + 1}[weights]
    assert [row["bytes_up"] for row in end.rows] == [4 * rows * numbers] * 2
    assert [row["bytes_down"] for row in end.rows] == [4 * rows * 3] * 2


def down(*known: int) -> Prototypes:
    """What client 2, which holds classes 1 and 2, may be sent."""
    labels = [s if s in known else -1 for s in (1, 2)]
    return Prototypes(torch.tensor(labels).int(), torch.tensor([[0.5, 1.0], [0.25, 0.0]]), None)


def me() -> OwnModel:
    return OwnModel(Params({k: t.float() for k, t in START.items()}))


def test_nearest_prototype() -> None:
    """Eq. (4) among the client's classes that have one; with only one, always that; with none, the head decides."""
    method, (x, _) = FedProto(evaluate="prototype"), CLIENTS[2]
    local, f = bench(plan_of(method), 2), features(START, x)
    z = method.personalize(me(), down(1, 2), local)(x)
    d = torch.stack([((f - p.double()) ** 2).sum(1).sqrt() for p in down(1, 2).means], 1)
    assert_close(z[:, 1:].double(), -d, atol=1e-6, rtol=0)
    assert z.argmax(1).tolist() == (d.argmin(1) + 1).tolist()
    assert (z[:, 0] < z[:, 1:].amin(1)).all()
    assert method.personalize(me(), down(2), local)(x).argmax(1).tolist() == [2, 2, 2]
    head = f @ START[V].T + START[C]
    assert_close(method.personalize(me(), down(), local)(x).double(), head, atol=1e-6, rtol=0)
    assert_close(FedProto().personalize(me(), down(1, 2), local)(x).double(), head, atol=1e-6, rtol=0)


def test_after_training_prototypes_judge_the_new_features() -> None:
    method, (x, y) = FedProto(evaluate="prototype", lam=LAM), CLIENTS[2]
    update = method.local_update(me(), down(1, 2), bench(plan_of(method, epochs=EPOCHS), 2))
    table = {s: p.double() for s, p in zip((1, 2), down(1, 2).means, strict=True)}
    w = train(START, x, y, table)
    d = torch.stack([((features(w, x) - table[s]) ** 2).sum(1).sqrt() for s in (1, 2)], 1)
    assert_close(update.model(x)[:, 1:].double(), -d, atol=2e-6, rtol=0)
    assert update.up.labels.tolist() == [1, 2] and update.up.counts.tolist() == [1, 2]


def test_a_class_that_nobody_sends_keeps_its_prototype() -> None:
    method, old = FedProto(), torch.arange(6.0).view(3, 2)
    known = torch.tensor([True, False, True])
    up = Prototypes(torch.tensor([2]).int(), torch.tensor([[7.0, 8.0]]), torch.tensor([3]).int())
    server = method.aggregate(Known(known, old), [Reply(0, up, 3)], ServerBench(plan_of(method), 1))
    assert server.known.tolist() == [True, False, True]
    assert server.means.tolist() == [[0, 1], [2, 3], [7, 8]]
    same = method.aggregate(server, [], ServerBench(plan_of(method), 2))
    assert torch.equal(same.means, server.means) and torch.equal(same.known, server.known)


@pytest.fixture
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("weights", ["samples", "equal"])
def test_two_rounds_in_double_precision(weights: str) -> None:
    """The same as above in the other precision: networks, prototypes and their means agree to the last digits."""
    table, models = Table(), [START] * 3
    for _ in range(2):
        models = [train(w, *client, table) for w, client in zip(models, CLIENTS, strict=True)]
        table = merged([prototypes(w, *client) for w, client in zip(models, CLIENTS, strict=True)], weights)
    network = model_of().double()
    network.load_state_dict(START)
    plan = plan_of(FedProto(lam=LAM, weights=weights), model=network, rounds=2, epochs=EPOCHS)
    end = run(dataclasses.replace(plan, data=dataclasses.replace(plan.data, x=plan.data.x.double())))
    for c, w in enumerate(models):
        for k, t in w.items():
            assert_close(end.states[c].me.w[k], t, atol=1e-14, rtol=0)
    assert_close(end.server.means, torch.stack([table[s] for s in range(3)]), atol=1e-14, rtol=0)
