"""FedNTD, FedLC, FedRS, FedSAM and MR-MTL in NumPy: FedAvg or local training with another loss, over two rounds.

With q~ and p~ the softmax at temperature tau of the global and the local scores of all classes but the true one, and
KL = sum q~ log(q~ / p~), the slope of KL in a local score is (p~ - q~) / tau, and 0 in that of the true class.
FedLC's loss is the cross-entropy of shifted scores; without the true class in its sum, the slope is the softmax over
the others minus onehot(y).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy64 import (
    CLIENTS,
    SIZES,
    START,
    Array,
    Labels,
    Weights,
    add,
    backward,
    close,
    entropy_slope,
    forward,
    gradient,
    mean,
    onehot,
    softmax,
    squared,
    step,
)
from tiny import plan_of, run

from headwise.methods.fedlc import FedLC
from headwise.methods.fedntd import FedNTD
from headwise.methods.fedrs import FedRS
from headwise.methods.fedsam import FedSAM
from headwise.methods.mr_mtl import MRMTL

LR, EPOCHS = 0.5, 2
Slope = Callable[[Array, Array, Labels], Array]
"""of the scores and those of the model that was sent"""


def two_rounds(slope: Slope) -> Weights:
    w = START
    for _ in range(2):
        ends = list[Weights]()
        for x, y in CLIENTS:
            v = w
            for _ in range(EPOCHS):
                made = forward(v, x)
                v = step(v, backward(v, x, made, slope(made.z, forward(w, x).z, y)), LR)
            ends.append(v)
        w = mean(ends, SIZES)
    return w


def not_true(z: Array, y: Labels, tau: float) -> Array:
    """The softmax over all classes but the true one, whose entry is 0."""
    e = np.exp(z / tau) * (1 - onehot(y))
    return e / e.sum(1, keepdims=True)


@pytest.mark.parametrize("tau", [1.0, 3.0])
def test_fedntd(tau: float) -> None:
    beta = 0.8

    def slope(z: Array, z_g: Array, y: Labels) -> Array:
        apart = (not_true(z, y, tau) - not_true(z_g, y, tau)) / tau / len(y)
        return entropy_slope(z, y) + beta * tau**2 * apart

    end = run(plan_of(FedNTD(beta=beta, tau=tau), rounds=2, epochs=EPOCHS))
    close(end.server.w, two_rounds(slope))


@pytest.mark.parametrize("against", ["all", "others"])
def test_fedlc(against: Any) -> None:
    tau = 0.7

    def slope(z: Array, z_g: Array, y: Labels) -> Array:
        n = np.maximum(np.bincount(y, minlength=3), 1e-8)
        z = z - tau * n**-0.25
        return entropy_slope(z, y) if against == "all" else (not_true(z, y, 1.0) - onehot(y)) / len(y)

    end = run(plan_of(FedLC(tau=tau, against=against), rounds=2, epochs=EPOCHS))
    close(end.server.w, two_rounds(slope))
    absent = softmax(forward(START, CLIENTS[0][0]).z - tau * np.array([1, 1e-8, 1e-8]) ** -0.25)
    assert absent[0, 1:].max() < 1e-20  # classes without samples do not compete


@pytest.mark.parametrize("factors", ["held", "counts"])
def test_fedrs(factors: Any) -> None:
    """Scores times a factor: by the chain rule, so are their slopes. Client 2 has one sample of class 1, two of 2."""
    alpha = 0.3

    def slope(z: Array, z_g: Array, y: Labels) -> Array:
        n = np.bincount(y, minlength=3)
        r = np.where(n > 0, 1.0, alpha) if factors == "held" else alpha + (1 - alpha) * n / n.max()
        return r * entropy_slope(r * z, y)

    end = run(plan_of(FedRS(alpha=alpha, factors=factors), rounds=2, epochs=EPOCHS))
    close(end.server.w, two_rounds(slope))


def test_fedsam() -> None:
    """The gradient at w + rho g / |g| moves w."""
    rho, w = 0.3, START
    for _ in range(2):
        ends = list[Weights]()
        for client in CLIENTS:
            v = w
            for _ in range(EPOCHS):
                g = gradient(v, *client)
                v = step(v, gradient(add(v, (rho / np.sqrt(squared(g)), g)), *client), LR)
            ends.append(v)
        w = mean(ends, SIZES)
    close(run(plan_of(FedSAM(rho=rho), rounds=2, epochs=EPOCHS)).server.w, w)


def test_mr_mtl() -> None:
    """The pull towards the mean model that was sent adds lam (w - w-) to the slope; own models continue."""
    lam, own, centre = 0.6, [START] * 3, START
    for _ in range(3):
        for c, client in enumerate(CLIENTS):
            for _ in range(EPOCHS):
                own[c] = step(own[c], add(gradient(own[c], *client), (lam, own[c]), (-lam, centre)), LR)
        centre = mean(own)
    end = run(plan_of(MRMTL(lam=lam, weights="clients"), rounds=3, epochs=EPOCHS))
    close(end.server.w, centre)
    for c, w in enumerate(own):
        close(end.states[c].me.w, w)
