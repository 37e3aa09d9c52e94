"""What a newcomer gets from FedGH and FedAFK, derived from their papers alone and computed with NumPy in float64.

Neither paper speaks of clients that come after training. What follows is Algorithm 1 of each, for a client that is
drawn for the first time in the round after the last one. Here a batch holds all samples, so an epoch is one step.

The network is f(x) = max(A x + b, 0), z = V f + c, with the mean cross-entropy l_sup over n samples. Backwards from
d = dl/df, its body has the gradients (d * [A x + b > 0])^T x and their sum over samples; its head, with
e = (softmax(z) - onehot(y)) / n, has e^T f and the sum of e, and d = e V.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
from byhand import BODY, CLIENTS, HEAD, START, close, drawn
from numpy.typing import NDArray
from tiny import bench, floats, plan_of
from torch import from_numpy

from headwise.contract.averaging import Averaged, Shared
from headwise.engine.joining import join
from headwise.methods.fedafk import FedAFK
from headwise.methods.fedgh import FedGH

Array = NDArray[np.float64]
LR, NEW = 0.5, 2
EPOCHS = pytest.mark.parametrize("epochs", [0, 1, 5])


class Part(NamedTuple):
    """A body or a head, or the gradient of one."""

    weight: Array
    bias: Array

    def minus(self, rate: float, other: Part) -> Part:
        return Part(self.weight - rate * other.weight, self.bias - rate * other.bias)

    def mixed(self, mu: float, other: Part) -> Part:
        return Part(mu * self.weight + (1 - mu) * other.weight, mu * self.bias + (1 - mu) * other.bias)

    def dot(self, other: Part) -> float:
        return float((self.weight * other.weight).sum() + (self.bias * other.bias).sum())


def part(weights: Mapping[str, Any], names: tuple[str, ...]) -> Part:
    return Part(*(weights[k].double().numpy() for k in names))


def samples(client: int) -> tuple[Array, NDArray[np.int64]]:
    x, y = CLIENTS[client]
    return x.numpy().astype(np.float64), y.numpy()


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def features(body: Part, x: Array) -> Array:
    return np.maximum(x @ body.weight.T + body.bias, 0)


def body_gradient(body: Part, x: Array, d: Array) -> Part:
    d = d * (x @ body.weight.T + body.bias > 0)
    return Part(d.T @ x, d.sum(0))


def supervised(body: Part, head: Part, x: Array, y: NDArray[np.int64]) -> tuple[Part, Part]:
    """The gradients of l_sup by body and head."""
    f = features(body, x)
    slope, d = head_gradient(head, f, y)
    return body_gradient(body, x, d), slope


def head_gradient(head: Part, f: Array, y: NDArray[np.int64]) -> tuple[Part, Array]:
    """And that by the features."""
    e = (softmax(f @ head.weight.T + head.bias) - np.eye(3)[y]) / len(y)
    return Part(e.T @ f, e.sum(0)), e @ head.weight


def gets(method: Any, server: Any, epochs: int, body: Part, head: Part) -> None:
    """The engine's answer, which begins at the learning rate without decay."""
    plan = plan_of(method, lr=LR, lr_decay=0.1, rounds=4)
    model: Any = join(plan, server, NEW, 4, epochs).model
    wanted = dict(zip(BODY + HEAD, map(from_numpy, (*body, *head)), strict=True))
    close(model.state_dict(), wanted)


@EPOCHS
def test_fedgh(epochs: int) -> None:
    """Before: the others' class means R_k^s (Eq. 3) train the header (Eq. 4), client after client as in Algorithm 1.

    Then Algorithm 1: omega_k = phi_k^0 o theta (Eq. 5, with the initial extractor), of which all is trained (Eq. 6).
    The header of a newcomer who trains is its own: nothing is sent, so theta does not change.
    """
    theta = part(START, HEAD)
    for k in (0, 1):
        x, y = samples(k)
        labels = np.unique(y)
        f = features(part(drawn(20 + k), BODY), x)  # extractors that the others have trained
        means = np.stack([f[y == s].mean(0) for s in labels])
        theta = theta.minus(0.25, head_gradient(theta, means, labels)[0])
    body, head = part(START, BODY), theta
    for _ in range(epochs):
        slopes = supervised(body, head, *samples(NEW))
        body, head = body.minus(LR, slopes[0]), head.minus(LR, slopes[1])
    header = dict(zip(HEAD, map(from_numpy, theta), strict=True))
    assert np.abs(theta.weight - part(START, HEAD).weight).max() > 1e-2
    gets(FedGH(header_lr=0.25), Shared(floats(header)), epochs, body, head)


def transfer(body: Part, f_G: Array, x: Array) -> tuple[float, Array]:
    """Eq. (8) with p = softmax(f_i), q = softmax(f_G): KL = 1/n sum p_k r_k, r = log p - log q; dKL/df is below.

    dp_j/df_k = p_j ([j = k] - p_k), and sum_j dp_j = 0, so dKL/df_k = p_k (r_k - sum_j p_j r_j) / n.
    """
    p, q = softmax(features(body, x)), softmax(f_G)
    r = np.log(p) - np.log(q)
    each = (p * r).sum(1, keepdims=True)
    return float(each.mean()), p * (r - each) / len(x)


def total(body: Part, head: Part, f_G: Array, lam: float) -> Part:
    """The gradient of Eq. (9) by theta_i: that of l_sup and of Eq. (8), both through the features."""
    x, y = samples(NEW)
    d = (1 - lam) * head_gradient(head, features(body, x), y)[1] + lam * transfer(body, f_G, x)[1]
    return body_gradient(body, x, d)


def fedafk(theta_G: Part, random: Part, lam: float, epochs: int) -> tuple[Part, Part, float]:
    """Lines 7 to 14 of Algorithm 1, after theta_i = theta_G and phi_i = phi_rd.

    Line 2 has the client begin with weights of its own, which know nothing of what was learned. We give a newcomer the
    only pair that was trained together: theta_G was trained under phi_rd (Eq. 4). This is our choice, not the paper's.
    """
    own, head, mu = theta_G, random, 0.5
    for _ in range(epochs):
        slope = total(own, head, features(theta_G, samples(NEW)[0]), lam)
        along = own.minus(1, theta_G).dot(slope)  # d theta_i / d mu = theta_i - theta_G, by Eq. (3)
        world = theta_G.minus(LR, supervised(theta_G, random, *samples(NEW))[0])  # line 9
        own = own.minus(LR, slope)  # line 10
        mu = min(1.0, max(0.0, mu - LR * along))  # line 11
        own, theta_G = own.mixed(mu, world), world  # line 12
    if epochs:
        head = head.minus(LR, supervised(own, head, *samples(NEW))[1])  # lines 13 and 14: one epoch
    return own, head, mu


@EPOCHS
def test_fedafk(epochs: int) -> None:
    """See `fedafk` and `transfer`. In the first epoch theta_i - theta_G is 0, so mu moves from the second on."""
    method, G = FedAFK(lam=0.3), drawn(9, BODY)
    head = bench(plan_of(method), NEW).random_head("fedafk")
    random = part(head, HEAD)
    body, own, mu = fedafk(part(G, BODY), random, 0.3, epochs)
    gets(method, Averaged(floats(G), None, None), epochs, body, own)
    assert (mu != 0.5) == (epochs == 5)
    if epochs == 5:  # what the test could not see without these
        frozen = fedafk(part(G, BODY), random, 0.0, epochs)[0]
        assert np.abs(frozen.weight - body.weight).max() > 1e-3
        assert abs(mu - 0.5) > 1e-4


def test_the_derivative_of_the_transfer_is_its_slope() -> None:
    """By central differences of Eq. (8), in each weight of the body."""
    body, other, x = part(drawn(9), BODY), part(drawn(10), BODY), samples(NEW)[0]
    f_G = features(other, x)
    found = body_gradient(body, x, transfer(body, f_G, x)[1])
    assert np.abs(found.weight).max() > 1e-2
    for i in np.ndindex(body.weight.shape):
        sides = [body.weight.copy(), body.weight.copy()]
        sides[0][i] += 1e-6
        sides[1][i] -= 1e-6
        high, low = (transfer(Part(side, body.bias), f_G, x)[0] for side in sides)
        assert (high - low) / 2e-6 == pytest.approx(found.weight[i], abs=1e-8)
