"""FedExP against its formulas: two rounds in NumPy, with gradients derived on paper."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from headwise_fedexp.fedexp import FedExP

from headwise.data.dataset import Dataset
from headwise.data.federated import FederatedData
from headwise.data.splits import Parts
from headwise.settings.options import Train
from headwise.testing import check_method
from headwise.testing.toy import FEATURES, network, play, toy_plan

LR, SIZES, EPSILON = 0.5, (7, 5), 0.01
A, B, H, C = "body.0.weight", "body.0.bias", "head.weight", "head.bias"
Weights = dict[str, np.ndarray]


def train(w: Weights, x: np.ndarray, y: np.ndarray) -> Weights:
    """A full-batch step on the mean cross-entropy of H max(A x + b, 0) + c."""
    z = np.maximum(x @ w[A].T + w[B], 0)
    e = np.exp(z @ w[H].T + w[C])
    d = (e / e.sum(1, keepdims=True) - np.eye(len(w[C]))[y]) / len(y)
    dz = (d @ w[H]) * (z > 0)
    slopes = {A: dz.T @ x, B: dz.sum(0), H: d.T @ z, C: d.sum(0)}
    return {k: t - LR * slopes[k] for k, t in w.items()}


def squared(w: Weights) -> float:
    return sum(float((t**2).sum()) for t in w.values())


@pytest.mark.parametrize("code", [False, True])
def test_two_rounds_are_what_the_formulas_give(code: bool) -> None:
    x = np.random.default_rng(3).standard_normal((sum(SIZES), FEATURES)).astype(np.float32)
    y = np.arange(sum(SIZES)) // 3
    blocks = np.split(np.arange(len(y)), np.cumsum(SIZES)[:-1])
    data = FederatedData(Dataset(x, y, ("a", "b", "c", "d")), [Parts(b, b[:0], b) for b in blocks])
    options = FedExP.presets["code"] if code else {}
    plan = toy_plan(FedExP(epsilon=EPSILON, **options), data=data, rounds=2, train=Train(batch=100, lr=LR))
    end = play(plan).ended[-1].progress.server
    w, steps = {k: t.double().numpy() for k, t in network().state_dict().items()}, list[float]()
    for _ in range(2):
        changes = [{k: t - w[k] for k, t in train(w, x[b].astype(np.float64), y[b]).items()} for b in blocks]
        p, few = (np.array(SIZES) / sum(SIZES), 2 * EPSILON) if code else ((0.5, 0.5), EPSILON)
        average = {k: p[0] * changes[0][k] + p[1] * changes[1][k] for k in w}
        spread = p[0] * squared(changes[0]) + p[1] * squared(changes[1])
        steps.append(max(1, spread / (2 * (squared(average) + few))))
        w = {k: t + steps[-1] * average[k] for k, t in w.items()}
    assert max(steps) > 1  # otherwise this is FedAvg
    for k, t in end.w.items():
        torch.testing.assert_close(t.double(), torch.from_numpy(w[k]), rtol=1e-5, atol=1e-6)


def test_contract() -> None:
    check_method(FedExP)
