"""The network of `byhand` in NumPy float64: slopes of any loss of its scores and features, derived on paper.

    a = A x + b,   f = max(a, 0),   z = V f + c

With dz and df the slopes of a loss of z and f, the chain rule gives
    dV = dz^T f,   dc = sum dz,   da = (dz V + df) * [a > 0],   dA = da^T x,   db = sum da.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import byhand
import numpy as np
import torch
from byhand import BODY, HEAD, A, B, C, V
from numpy.typing import NDArray

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
Weights = dict[str, Array]
ALL = BODY + HEAD


def arrays(w: Mapping[str, torch.Tensor]) -> Weights:
    return {k: t.detach().double().numpy().copy() for k, t in w.items()}


START = arrays(byhand.START)
CLIENTS: list[tuple[Array, Labels]] = [(x.double().numpy(), y.numpy()) for x, y in byhand.CLIENTS]
SIZES = byhand.SIZES


class Pass(NamedTuple):
    a: Array
    f: Array
    z: Array


def forward(w: Weights, x: Array) -> Pass:
    a = x @ w[A].T + w[B]
    f = np.maximum(a, 0)
    return Pass(a, f, f @ w[V].T + w[C])


def backward(w: Weights, x: Array, made: Pass, dz: Array, df: Any = 0.0) -> Weights:
    da = (dz @ w[V] + df) * (made.a > 0)
    return {A: da.T @ x, B: da.sum(0), V: dz.T @ made.f, C: dz.sum(0)}


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def onehot(y: Labels, classes: int = 3) -> Array:
    return np.eye(classes)[y]


def entropy_slope(z: Array, y: Labels) -> Array:
    """Of the mean cross-entropy, in the scores."""
    return (softmax(z) - onehot(y, z.shape[1])) / len(y)


def gradient(w: Weights, x: Array, y: Labels) -> Weights:
    made = forward(w, x)
    return backward(w, x, made, entropy_slope(made.z, y))


def add(w: Weights, *terms: tuple[float, Weights]) -> Weights:
    """w plus each factor times its weights."""
    return {k: t + sum(s * d[k] for s, d in terms) for k, t in w.items()}


def step(w: Weights, slopes: Weights, lr: float, names: Sequence[str] = ALL) -> Weights:
    return {k: t - lr * slopes[k] if k in names else t for k, t in w.items()}


def train(w: Weights, x: Array, y: Labels, lr: float, steps: int, names: Sequence[str] = ALL) -> Weights:
    for _ in range(steps):
        w = step(w, gradient(w, x, y), lr, names)
    return w


def mean(parts: Sequence[Weights], weights: Sequence[float] | None = None) -> Weights:
    shares = np.ones(len(parts)) if weights is None else np.asarray(weights, dtype=np.float64)
    return {k: sum(s * p[k] for s, p in zip(shares / shares.sum(), parts, strict=True)) for k in parts[0]}  # type: ignore[misc]


def only(w: Weights, names: Sequence[str]) -> Weights:
    return {k: w[k] for k in names}


def squared(w: Weights) -> float:
    return float(sum((t**2).sum() for t in w.values()))


def class_means(f: Array, y: Labels) -> dict[int, Array]:
    return {int(s): f[y == s].sum(0) / (y == s).sum() for s in np.unique(y)}


def close(actual: Mapping[str, torch.Tensor], expected: Weights, atol: float = 2e-6) -> None:
    """Same names, and the same numbers up to single precision."""
    assert set(actual) == set(expected)
    for k, t in expected.items():
        np.testing.assert_allclose(actual[k].double().numpy(), t, rtol=0, atol=atol, err_msg=k)
