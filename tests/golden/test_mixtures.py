"""FedEM, kNN-Per and FedTGP in NumPy.

FedEM: the slope of the mean of q_i l_i in a component's scores is q_i (softmax - onehot) / n. kNN-Per: distances are
sorted. FedTGP: with t_k a prototype, d_ik = |p_i - t_k| and s the softmax of -(d + margin onehot), the mean loss
has the slope (onehot - s)_ik / n in d_ik, and d_ik has (t_k - p_i) / d_ik in t_k; the layers follow by the chain rule.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from byhand import CLIENTS as TENSORS
from numpy64 import (
    CLIENTS,
    SIZES,
    START,
    A,
    Array,
    B,
    Labels,
    Weights,
    arrays,
    backward,
    class_means,
    close,
    forward,
    mean,
    onehot,
    softmax,
    step,
    train,
)
from tiny import Client, bench, model_of, plan_of, run

from headwise.contract.averaging import Shared
from headwise.contract.benches import ClassMeans
from headwise.contract.method import Reply
from headwise.engine.server_bench import ServerBench
from headwise.methods.fedem import FedEM
from headwise.methods.fedtgp import FedTGP
from headwise.methods.knn_per import KNNPer

LR, EPOCHS = 0.5, 2


def entropies(w: Weights, x: Array, y: Labels) -> Array:
    return -np.log(softmax(forward(w, x).z)[np.arange(len(y)), y])


def responsibilities(models: list[Weights], pi: Array, x: Array, y: Labels) -> Array:
    """[M, n]"""
    joint = np.stack([p * np.exp(-entropies(w, x, y)) for p, w in zip(pi, models, strict=True)])
    return joint / joint.sum(0)


def component(params: Any, m: int) -> dict[str, torch.Tensor]:
    return {k.removeprefix(f"{m}:"): t for k, t in params.items() if k.startswith(f"{m}:")}


def test_fedem() -> None:
    method = FedEM(M=2)
    plan = plan_of(method, rounds=2, epochs=EPOCHS, lr=LR)
    first = method.server_init(ServerBench(plan, 0)).w
    shared = [arrays(component(first, m)) for m in (0, 1)]
    pi = [np.full(2, 0.5)] * 3
    for _ in range(2):
        ends = list[list[Weights]]()
        for c, (x, y) in enumerate(CLIENTS):
            q, trained = responsibilities(shared, pi[c], x, y), list[Weights]()
            for w, mine in zip(shared, q, strict=True):
                for _ in range(EPOCHS):
                    made = forward(w, x)
                    dz = mine[:, None] * (softmax(made.z) - onehot(y)) / len(y)
                    w = step(w, backward(w, x, made, dz), LR)
                trained.append(w)
            ends.append(trained)
            pi[c] = q.mean(1)
        shared = [mean([e[m] for e in ends], SIZES) for m in (0, 1)]
    end = run(plan)
    for m in (0, 1):
        close(component(end.server.w, m), shared[m])
    for c in range(3):
        np.testing.assert_allclose(end.states[c].me.pi.numpy(), pi[c], atol=2e-6)
    x = CLIENTS[2][0]
    model = method.personalize(end.states[2].me, Shared(end.server.w), bench(plan, 2, 2))
    expected = sum(p * softmax(forward(w, x).z) for p, w in zip(pi[2], shared, strict=True))
    np.testing.assert_allclose(model(TENSORS[2][0]).exp().detach().numpy(), expected, atol=2e-6)
    assert abs(pi[2][0] - 0.5) > 0.01


def test_fedem_of_one_component_is_fedavg() -> None:
    w = START
    for _ in range(2):
        w = mean([train(w, *c, LR, EPOCHS) for c in CLIENTS], SIZES)
    end = run(plan_of(FedEM(M=1), rounds=2, epochs=EPOCHS, lr=LR))
    close(component(end.server.w, 0), w)


def client(n: int) -> Client:
    return torch.rand(n, 2, generator=torch.Generator().manual_seed(n)), torch.arange(n) % 3


ON = START | {A: np.abs(START[A]), B: np.abs(START[B])}
"""all units are on: features that are 0 would be as near to each other"""
ON_MODEL = model_of({k: torch.from_numpy(t) for k, t in ON.items()})


def neighbours(x: Array, store: tuple[Array, Labels], k: int, scale: float) -> Array:
    """[n, 3]: p_knn, by sorting."""
    f, (g, y), rows = forward(ON, x).f, (forward(ON, store[0]).f, store[1]), list[Array]()
    for a in f:
        d = ((g - a) ** 2).sum(1)
        nearest = np.argsort(d, kind="stable")[:k]
        s = np.exp(-d[nearest] / (2 * scale))
        rows.append((s[:, None] * onehot(y[nearest])).sum(0) / s.sum())
    return np.stack(rows)


@pytest.mark.parametrize(("k", "share"), [(3, 0.3), (4, 1.0), (99, 0.6)])
def test_knn_per(k: int, share: float) -> None:
    x, y = client(9)
    method = KNNPer(k=k, share=share, scale=0.4)
    local = bench(plan_of(method, [(x, y)]), 0)
    model = method.personalize(method.client_init(local), Shared(ON_MODEL.params()), local)
    other = torch.linspace(0.1, 1, 10).view(5, 2)
    at = other.double().numpy()
    p = neighbours(at, (x.double().numpy(), y.numpy()), k, 0.4)
    expected = share * p + (1 - share) * softmax(forward(ON, at).z)
    np.testing.assert_allclose(model(other).exp().detach().numpy(), expected, atol=5e-6)


def test_knn_per_chooses_the_share_that_is_best_on_what_it_holds_out() -> None:
    x, y = client(20)
    method = KNNPer(k=3, scale=0.4)
    plan = plan_of(method, [(x, y)])
    _, (xq, yq) = bench(plan, 0).hold_out(0.2)
    rest = [i for i in range(20) if not any(torch.equal(x[i], q) for q in xq)]
    store, at = (x[rest].double().numpy(), y[rest].numpy()), xq.double().numpy()
    p, z = neighbours(at, store, 3, 0.4), softmax(forward(ON, at).z)
    losses = [-np.log(np.maximum(s * p + (1 - s) * z, 1e-12))[np.arange(4), yq].mean() for s in np.arange(11) / 10]
    best = method._best(ON_MODEL, bench(plan, 0))
    assert best == int(np.argmin(losses)) / 10
    few = plan_of(method, [client(3)])
    assert method._best(few.models[0], bench(few, 0)) == 0.5


def test_knn_per_trains_as_fedavg() -> None:
    w = mean([train(START, *c, LR, EPOCHS) for c in CLIENTS], SIZES)
    close(run(plan_of(KNNPer(), epochs=EPOCHS, lr=LR)).server.w, w)


def tgp_step(net: Weights, protos: Array, y: Labels, margin: float, lr: float) -> Weights:
    hidden = net["table"] @ net["0.weight"].T + net["0.bias"]
    active = np.maximum(hidden, 0)
    t = active @ net["2.weight"].T + net["2.bias"]
    apart = protos[:, None] - t
    d = np.sqrt((apart**2).sum(2))
    dd = (onehot(y) - softmax(-(d + margin * onehot(y)))) / len(y)
    dt = (dd[..., None] * -apart / d[..., None]).sum(0)
    da = dt @ net["2.weight"] * (hidden > 0)
    slopes = {
        "2.weight": dt.T @ active,
        "2.bias": dt.sum(0),
        "0.weight": da.T @ net["table"],
        "0.bias": da.sum(0),
        "table": da @ net["0.weight"],
    }
    return {k: v - lr * slopes[k] for k, v in net.items()}


@pytest.mark.parametrize(("most", "prototypes"), [(100.0, "after"), (0.2, "after"), (100.0, "before")])
def test_fedtgp(most: float, prototypes: Any) -> None:
    """Two rounds; all class means fit in one batch of the server. The margin is of the classes' mean prototypes."""
    lam, method = 0.7, FedTGP(lam=0.7, most=most, epochs=5, server_lr=0.3, prototypes=prototypes)
    plan = plan_of(method, rounds=2, epochs=EPOCHS, lr=LR)
    net = arrays(method.server_init(ServerBench(plan, 0)).net)
    own, margins = [START] * 3, list[float]()
    for t in (1, 2):
        hidden = np.maximum(net["table"] @ net["0.weight"].T + net["0.bias"], 0)
        protos = hidden @ net["2.weight"].T + net["2.bias"]
        sent = list[tuple[Array, int]]()
        for c, (x, y) in enumerate(CLIENTS):
            before = own[c]
            for _ in range(EPOCHS):
                made = forward(own[c], x)
                df = 2 * lam * (made.f - protos[y]) / made.f.size if t > 1 else 0.0
                own[c] = step(own[c], backward(own[c], x, made, (softmax(made.z) - onehot(y)) / len(y), df), LR)
            counted = own[c] if prototypes == "after" else before
            sent += [(p, s) for s, p in class_means(forward(counted, x).f, y).items()]
        means, labels = np.stack([p for p, _ in sent]), np.array([s for _, s in sent])
        centres = [means[labels == s].mean(0) for s in range(3)]
        apart = [[np.sqrt(((a - b) ** 2).sum()) for b in centres if b is not a] for a in centres]
        margins.append(min(max(map(min, apart)), most))
        for _ in range(5):
            net = tgp_step(net, means, labels, margins[-1], 0.3)
    end = run(plan)
    close(end.server.net, net, atol=1e-5)
    for c, w in enumerate(own):
        close(end.states[c].me.w, w, atol=1e-5)
    assert (max(margins) == most) == (most < 1)


def test_fedtgp_a_single_class_has_the_largest_margin_and_nothing_changes_nothing() -> None:
    method = FedTGP(most=7.0)
    central = ServerBench(plan_of(method), 1)
    server = method.server_init(central)
    assert method._margin(torch.ones(2, 2), torch.tensor([1, 1])) == 7.0
    empty = ClassMeans(torch.zeros(0, dtype=torch.int32), torch.zeros(0, 2))
    assert method.aggregate(server, [Reply(0, empty, 1)], central) is server
