"""Six methods a second time, by another reader who began with public code: FL-bench's and PFLlib's files, and the code
of FedGen's and Floco's authors. Every slope here is a central difference of the loss itself, in double precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from byhand import CLIENTS as TENSORS
from numpy64 import (
    BODY,
    CLIENTS,
    HEAD,
    SIZES,
    START,
    Array,
    C,
    Labels,
    V,
    Weights,
    add,
    arrays,
    close,
    forward,
    mean,
    only,
    train,
)  # fmt: skip
from tiny import Client, bench, plan_of, run
from torch import Tensor

from headwise.authoring import Local, Reply
from headwise.engine.server_bench import ServerBench
from headwise.methods.ccvr import CCVR, _gaussians
from headwise.methods.fedcross import FedCross
from headwise.methods.fedgc import FedGC
from headwise.methods.fedgen import FedGen
from headwise.methods.floco import Down, Floco
from headwise.methods.pfedla import PFedLA

LR = 0.5
TINY = 1e-5


def entropy(z: Array, y: Labels) -> float:
    """Mean cross-entropy of scores."""
    high = z.max(1)
    return float(np.mean(high + np.log(np.exp(z - high[:, None]).sum(1)) - z[np.arange(len(y)), y]))


def slope(value: Callable[[Weights], float], w: Weights) -> Weights:
    slopes = {k: np.zeros_like(t) for k, t in w.items()}
    for k, t in w.items():
        for at in np.ndindex(t.shape):
            ahead, behind = {**w, k: t.copy()}, {**w, k: t.copy()}
            ahead[k][at] += TINY
            behind[k][at] -= TINY
            slopes[k][at] = (value(ahead) - value(behind)) / (2 * TINY)
    return slopes


def descend(value: Callable[[Weights], float], w: Weights, lr: float, steps: int = 1) -> Weights:
    for _ in range(steps):
        w = add(w, (-lr, slope(value, w)))
    return w


def test_ccvr_joins_the_moments_of_clients() -> None:
    """Means weigh by samples, covariances by samples - 1; the spread of the means is added."""
    method = CCVR()
    plan = plan_of(method, epochs=2, lr=LR)
    down = method.server_init(ServerBench(plan, 0))
    ups = [method.local_update(method.client_init(bench(plan, i)), down, bench(plan, i)).up for i in range(3)]
    made = {c: (mu, root @ root.T) for c, mu, root in _gaussians([Reply(i, ups[i], SIZES[i]) for i in range(3)])}
    for c in (1, 2):
        held = [forward(START, x).f[y == c] for x, y in CLIENTS if (y == c).any()]
        n = sum(map(len, held))
        mu = sum(len(f) * f.mean(0) for f in held) / n
        sigma = -n / (n - 1) * np.outer(mu, mu)
        for f in held:
            own = np.cov(f.T) if len(f) > 1 else np.zeros((2, 2))
            sigma = sigma + (len(f) - 1) / (n - 1) * own + len(f) / (n - 1) * np.outer(f.mean(0), f.mean(0))
        np.testing.assert_allclose(made[c][0].numpy(), mu, atol=1e-6)
        np.testing.assert_allclose(made[c][1].numpy(), sigma, atol=1e-6)


Y = np.array([0, 2, 1, 1])
EPS = np.array([[0.5, -1.0], [1.5, 0.25], [-0.75, 0.0], [2.0, -0.5]])


class Fixed(FedGen):
    """FedGen that always draws the same labels and noise."""

    def _draw(self, shares: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.tensor(Y), torch.tensor(EPS).float()


def generate(net: Weights) -> Array:
    hidden = np.concatenate([EPS, np.eye(3)[Y]], 1) @ net["0.weight"].T + net["0.bias"]
    return np.maximum(hidden, 0) @ net["2.weight"].T + net["2.bias"]


def test_fedgen_teaches_the_generator_by_the_mean_scores_of_all_heads() -> None:
    method = Fixed(alpha=0.7, noise=2, hidden=4, steps=2, server_lr=0.2)
    plan = plan_of(method, rounds=2, lr=LR)
    net = arrays(method.server_init(ServerBench(plan, 0)).net)
    w = START
    for t in (1, 2):
        trained = list[Weights]()
        for x, y in CLIENTS:

            def of_client(at: Weights, x: Array = x, y: Labels = y, net: Weights = net, t: int = t) -> float:
                made = entropy(generate(net) @ at[V].T + at[C], Y) if t > 1 else 0.0
                return entropy(forward(at, x).z, y) + 0.7 * made

            trained.append(descend(of_client, w, LR))

        def of_generator(at: Weights, heads: list[Weights] = trained) -> float:
            scores = sum(n * (generate(at) @ h[V].T + h[C]) for n, h in zip(SIZES, heads, strict=True))
            return entropy(scores / sum(SIZES), Y)

        net = descend(of_generator, net, 0.2, steps=2)
        w = mean(trained, SIZES)
    end = run(plan)
    close(end.server.w, w, atol=1e-5)
    close(end.server.net, net, atol=1e-5)


class Row(NamedTuple):
    client: int
    label: int


def regularizer(free: Weights, fixed: Weights, rows: list[Row]) -> float:
    """Each fixed row against all free rows of other clients and other classes; its product with itself is fixed."""
    value = 0.0
    for row in rows:
        w = fixed[str(row.client)][row.label]
        others = [r for r in rows if r.client != row.client and r.label != row.label]
        own = np.exp(w @ w)
        value -= np.log(own / (own + sum(np.exp(free[str(r.client)][r.label] @ w) for r in others)))
    return float(value)


APART: list[Client] = [  # as in the paper, no two clients hold the same class
    (torch.tensor([[1.0, 0.5]]), torch.tensor([0])),
    (torch.tensor([[0.5, 2.0], [-1.0, 1.5]]), torch.tensor([1, 1])),
    (torch.tensor([[2.0, -1.0], [0.25, 1.25]]), torch.tensor([2, 2])),
]


def test_fedgc_moves_only_rows_of_other_clients() -> None:
    for clients in (APART, TENSORS):
        end = run(plan_of(FedGC(server_lr=0.1), clients, rounds=2, lr=LR))
        rows = [Row(i, int(c)) for i, (_, y) in enumerate(clients) for c in y.unique()]
        body = only(START, BODY)
        heads = [only(START, HEAD)] * 3
        for _ in range(2):
            pairs = [(x.double().numpy(), y.numpy()) for x, y in clients]
            trained = [train(body | head, *pair, LR, 1) for head, pair in zip(heads, pairs, strict=True)]
            body = mean([only(w, BODY) for w in trained], [len(y) for _, y in clients])
            stacked = {str(i): w[V] for i, w in enumerate(trained)}

            def value(free: Weights, fixed: Weights = stacked, rows: list[Row] = rows) -> float:
                return regularizer(free, fixed, rows)

            moved = descend(value, stacked, 0.1)
            heads = [{V: moved[str(i)], C: w[C]} for i, w in enumerate(trained)]
        close(end.server.w, body, atol=1e-5)
        for i in range(3):
            close(end.server.heads[i], heads[i], atol=1e-5)


def mix(net: Weights, models: list[Weights]) -> Weights:
    h = net["v"]
    for i in range(3):
        h = np.maximum(net[f"inner.{i}.weight"] @ h + net[f"inner.{i}.bias"], 0)
    shares = [np.maximum(net[f"outer.{i}.weight"] @ h + net[f"outer.{i}.bias"], 0) for i in range(2)]
    return {k: mean(models, list(shares[0 if k in BODY else 1]))[k] for k in START}


def test_pfedla_descends_the_clients_own_loss() -> None:
    """After one local step, d = -lr dl/dtheta~; so a hypernetwork takes a step of lr server_lr on l(theta~(HN))."""
    method = PFedLA(embed=2, hidden=3, server_lr=0.05)
    plan = plan_of(method, rounds=2, lr=LR)
    end = run(plan)
    first = arrays(method._start(ServerBench(plan, 0)))
    models = [train(START, *c, LR, 1) for c in CLIENTS]
    for i, (x, y) in enumerate(CLIENTS):

        def value(net: Weights, x: Array = x, y: Labels = y) -> float:
            return entropy(forward(mix(net, models), x).z, y)

        close(end.server.nets[i], descend(value, first, 0.05 * LR), atol=2e-5)
        close(end.server.models[i], train(mix(first, models), x, y, LR, 1), atol=2e-5)


def test_fedcross_with_two_of_three_clients() -> None:
    """Two models; each is the other's only partner, and clients take turns with them."""
    method = FedCross(alpha=0.8)
    plan = plan_of(method, rounds=4, ratio=0.67, lr=LR)
    end = run(plan)
    models = [START, START]
    for t, row in enumerate(end.rows, 1):
        assert len(row["clients"]) == 2
        trained = [START, START]
        for place, client in enumerate(row["clients"]):
            number = (place + t) % 2
            trained[number] = train(models[number], *CLIENTS[client], LR, 1)
        a, b = trained
        models = [{k: 0.8 * a[k] + 0.2 * b[k] for k in a}, {k: 0.8 * b[k] + 0.2 * a[k] for k in a}]
    for i in range(2):
        close(end.server.models[i], models[i], atol=1e-5)


class Held(Floco):
    """Floco whose points are given: one on the simplex until tau, then the centre of the client's subregion."""

    def _draw(self, down: Down, local: Local) -> Tensor:
        return down.centre if down.placed else torch.tensor([0.75, 0.25])


def test_floco_before_and_after_clients_have_a_subregion() -> None:
    method = Held(endpoints=2, tau=0.5)
    plan = plan_of(method, rounds=2, lr=LR)
    server = method.server_init(ServerBench(plan, 0))
    ends = [arrays(h) for h in server.ends.values()]
    body = only(START, BODY)
    points = [np.array([0.75, 0.25])] * 3
    for t in (1, 2):
        trained = list[Weights]()
        for (x, y), alpha in zip(CLIENTS, points, strict=True):

            def value(at: Weights, x: Array = x, y: Labels = y, alpha: Array = alpha) -> float:
                head = {k: alpha[0] * at[f"0.{k}"] + alpha[1] * at[f"1.{k}"] for k in HEAD}
                return entropy(forward(only(at, BODY) | head, x).z, y)

            whole = body | {f"{m}.{k}": ends[m][k] for m in range(2) for k in HEAD}
            trained.append(descend(value, whole, LR))
        joined = mean(trained, SIZES)
        body = only(joined, BODY)
        ends = [{k: joined[f"{m}.{k}"] for k in HEAD} for m in range(2)]
        if t == 1:
            points = place(
                np.stack([np.concatenate([w[f"{m}.{k}"].ravel() for m in range(2) for k in HEAD]) for w in trained])
            )
    end = run(plan)
    close(end.server.w, body, atol=1e-5)
    for m in range(2):
        close(end.server.ends[m], ends[m], atol=1e-5)
    for i in range(3):
        close(end.server.centres[i], {"beta": points[i]}, atol=1e-4)


def place(heads: Array) -> list[Array]:
    """Two principal scores per client, projected on the segment of each size; the one with the lowest energy."""
    centred = heads - heads.mean(0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    kappa = (left * values)[:, :2]
    kappa = kappa * np.sign(kappa[np.abs(kappa).argmax(0), [0, 1]])

    def project(z: float) -> Array:
        first = np.clip((kappa[:, 0] - kappa[:, 1] + z) / 2, 0, z)  # the nearest point with u + v = z, u and v >= 0
        return np.stack([first, z - first], 1) / z

    def energy(beta: Array) -> float:
        apart = [max(float(np.linalg.norm(beta[i] - beta[j])), 1e-4) for i, j in ((0, 1), (0, 2), (1, 2))]
        return float(np.log(sum(1 / d**2 for d in apart)) - np.log(3))

    return list(min((project(z) for z in np.linspace(1e-4, 1, 1000)), key=energy))
