"""The arithmetic of a round, written out by hand in double precision; nothing of Headwise, and no autograd.

The network is the smallest that has a body and a head: two inputs, two hidden units, three classes,

    a = A x + b,   f = max(a, 0),   z = V f + c,   p_k = e^{z_k} / sum_j e^{z_j}

with the mean cross-entropy over n samples, L = -1/n sum log p_y. Its derivatives are

    dL/dz = (p - onehot(y)) / n,           dL/dV = (dL/dz)^T f,   dL/dc = sum dL/dz,
    dL/da = (dL/dz V) * [a > 0],           dL/dA = (dL/da)^T x,   dL/db = sum dL/da.
"""

from __future__ import annotations

import torch
from torch import Tensor

Weights = dict[str, Tensor]

A, B, V, C = "body.0.weight", "body.0.bias", "head.weight", "head.bias"
BODY, HEAD = (A, B), (V, C)

START: Weights = {
    A: torch.tensor([[0.5, -0.25], [-0.75, 1.0]], dtype=torch.float64),
    B: torch.tensor([0.125, -0.5], dtype=torch.float64),
    V: torch.tensor([[0.5, -1.0], [0.25, 0.75], [-0.5, 0.125]], dtype=torch.float64),
    C: torch.tensor([0.0, 0.25, -0.125], dtype=torch.float64),
}


def drawn(seed: int, names: tuple[str, ...] = (), like: Weights = START) -> Weights:
    """Random weights of these parameters, or of all; the others take their share of the draws."""
    rng = torch.Generator().manual_seed(seed)
    every = {k: torch.randn(t.shape, generator=rng).double() for k, t in like.items()}
    return only(every, names or tuple(every))


def only(w: Weights, names: tuple[str, ...]) -> Weights:
    return {k: w[k] for k in names}


def add(w: Weights, *terms: tuple[float, Weights]) -> Weights:
    """w + sum of each factor times its weights."""
    return {k: t + sum(s * d[k] for s, d in terms) for k, t in w.items()}


CLIENTS = [  # of 1, 2 and 3 samples; one hidden unit is off for some of them
    (torch.tensor([[1.0, 0.5]]), torch.tensor([0])),
    (torch.tensor([[0.5, 2.0], [-1.0, 1.5]]), torch.tensor([1, 2])),
    (torch.tensor([[2.0, -1.0], [0.25, 1.25], [-0.5, 0.75]]), torch.tensor([2, 1, 2])),
]
SIZES = [1, 2, 3]
TOTAL = 6


def features(w: Weights, x: Tensor) -> Tensor:
    return (x.double() @ w[A].T + w[B]).clamp(min=0)


def gradient(w: Weights, x: Tensor, y: Tensor) -> Weights:
    x = x.double()
    a = x @ w[A].T + w[B]
    f = a.clamp(min=0)
    e = (f @ w[V].T + w[C]).exp()
    p = e / e.sum(1, keepdim=True)
    dz = p.clone()
    for i, label in enumerate(y.tolist()):
        dz[i, label] -= 1
    dz = dz / len(y)
    da = (dz @ w[V]) * (a > 0)
    return {A: da.T @ x, B: da.sum(0), V: dz.T @ f, C: dz.sum(0)}


def descend(
    w: Weights, x: Tensor, y: Tensor, lr: float, steps: int = 1, only: tuple[str, ...] = BODY + HEAD
) -> Weights:
    """Full-batch steps w <- w - lr dL/dw on the named tensors; the others stay."""
    for _ in range(steps):
        g = gradient(w, x, y)
        w = {k: w[k] - lr * g[k] if k in only else w[k] for k in w}
    return w


def weighted(parts: list[Weights], names: tuple[str, ...] = BODY + HEAD, sizes: list[int] = SIZES) -> Weights:
    """sum_k n_k / n w_k."""
    return {
        k: sum((n * p[k] for n, p in zip(sizes, parts, strict=True)), start=0 * parts[0][k]) / sum(sizes) for k in names
    }


def close(found: dict[str, Tensor], wanted: Weights) -> None:
    """Same names, and the same numbers up to single precision."""
    assert set(found) == set(wanted)
    for k, t in wanted.items():
        torch.testing.assert_close(found[k].double(), t, rtol=0, atol=2e-6)
