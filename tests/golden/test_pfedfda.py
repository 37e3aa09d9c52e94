"""pFedFDA in NumPy: a client's round with its Gaussians, the shares beta, and the server's mean.

With weight = Sigma^-1 mu and bias = log pi - mu Sigma^-1 mu / 2, the body learns by the cross-entropy of
weight f + bias, so df = dz weight. The shares are checked by what defines them: no nearby pair has a smaller loss.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy64 import (
    BODY,
    START,
    A,
    Array,
    Labels,
    Weights,
    arrays,
    backward,
    close,
    entropy_slope,
    forward,
    only,
    softmax,
    step,
)
from tiny import Client, bench, plan_of

from headwise.contract.method import Reply
from headwise.engine.server_bench import ServerBench
from headwise.methods.pfedfda import Gaussians, PFedFDA

LR, EPOCHS, EPSILON, RIDGE = 0.2, 2, 1e-4, 0.25
SIZES = [11, 6]


def client(n: int) -> Client:
    return torch.randn(n, 2, generator=torch.Generator().manual_seed(n)), torch.arange(n) % 3 % 2 + (
        torch.arange(n) > 8
    )


CLIENTS = [client(n) for n in SIZES]
MEANS = np.array([[0.5, 0.1], [0.2, 0.9], [1.0, 0.4]])
COV = np.array([[0.6, 0.1], [0.1, 0.3]])


def head(means: Array, cov: Array, y: Labels) -> tuple[Array, Array]:
    pi = np.bincount(y, minlength=3) / len(y) + EPSILON
    cov = (1 - EPSILON) * cov + EPSILON * np.trace(cov) / 2 * np.eye(2)
    weight = means @ np.linalg.inv(cov).T
    return weight, np.log(pi / pi.sum()) - 0.5 * np.array([m @ np.linalg.inv(cov) @ m for m in means])


def estimates(f: Array, y: Labels) -> tuple[Array, Array]:
    means = np.stack([f[y == s].mean(0) if (y == s).any() else MEANS[s] for s in range(3)])
    scatter = sum((np.outer(a - means[s], a - means[s]) for a, s in zip(f, y, strict=True)), np.zeros((2, 2)))
    return means, scatter / (len(y) - 1) + RIDGE * np.eye(2)


def held_out_loss(beta: tuple[float, float], f: Array, y: Labels, labels: Labels) -> float:
    """Each class is dealt to two halves in turn; a class of one sample is left out."""
    dealt = [[i for i, s in enumerate(y) if (y == s).sum() > 1 and (y[:i] == s).sum() % 2 == k] for k in (0, 1)]
    total = 0.0
    for a, b in ((dealt[0], dealt[1]), (dealt[1], dealt[0])):
        means, cov = estimates(f[a], y[a])
        mixed = beta[0] * means + (1 - beta[0]) * MEANS, beta[1] * cov + (1 - beta[1]) * COV
        weight, bias = head(*mixed, labels)
        p = softmax(f[b] @ weight.T + bias)
        total -= np.log(p[np.arange(len(b)), y[b]]).mean()
    return total


def train(c: int, local: Any) -> tuple[Weights, Array, Labels]:
    """The body after training, and the features met meanwhile, in the order of the client's batches."""
    x, y = CLIENTS[c][0].double().numpy(), CLIENTS[c][1].numpy()
    rng, w, met, labels = torch.Generator(), START, list[Array](), list[Labels]()
    rng.set_state(local.rng.get_state())
    weight, bias = head(MEANS, COV, y)
    for _ in range(EPOCHS):
        i = torch.randperm(len(y), generator=rng).numpy()
        made = forward(w, x[i])
        met.append(made.f)
        labels.append(y[i])
        dz = entropy_slope(made.f @ weight.T + bias, y[i])
        w = step(w, backward(w, x[i], made, 0 * made.z, dz @ weight), LR, BODY)
    return w, np.concatenate(met), np.concatenate(labels)


def down() -> Gaussians:
    body = plan_of().models[0].params("body")
    return Gaussians(body, torch.from_numpy(MEANS).float(), torch.from_numpy(COV).float())


def update(method: PFedFDA, c: int) -> tuple[Any, Weights, Array, Labels]:
    local = bench(plan_of(method, CLIENTS, lr=LR, epochs=EPOCHS), c)
    expected = train(c, local)
    return method.local_update(method.client_init(local), down(), local), *expected


def share(mixed: Array, own: Array, globally: Array) -> float:
    """The beta of mixed = beta own + (1 - beta) globally, which must hold in all entries."""
    beta = ((mixed - globally) * (own - globally)).sum() / ((own - globally) ** 2).sum()
    np.testing.assert_allclose(mixed, beta * own + (1 - beta) * globally, atol=1e-5)
    return float(beta)


@pytest.mark.parametrize("c", [0, 1])
@pytest.mark.parametrize("beta", ["two", "one", "local"])
def test_client_half(beta: Any, c: int) -> None:
    made, w, f, y = update(PFedFDA(beta=beta, ridge=RIDGE), c)
    close(made.up.w, only(w, BODY))
    means, cov = estimates(f, y)
    shares = share(made.up.means.double().numpy(), means, MEANS), share(made.up.cov.double().numpy(), cov, COV)
    x, labels = CLIENTS[c][0].double().numpy(), CLIENTS[c][1].numpy()
    weight, bias = head(made.up.means.double().numpy(), made.up.cov.double().numpy(), labels)
    scores = forward(w, x).f @ weight.T + bias
    np.testing.assert_allclose(made.model(CLIENTS[c][0]).detach().numpy(), scores, atol=5e-4, rtol=1e-4)
    if beta == "local":
        np.testing.assert_allclose(shares, 1, atol=1e-5)
        return
    smallest = held_out_loss(shares, f, y, labels)
    grid = np.linspace(0, 1, 21)
    pairs = [(a, a if beta == "one" else b) for a in grid for b in grid]
    assert smallest <= min(held_out_loss(pair, f, y, labels) for pair in pairs) + 1e-7
    assert beta == "two" or abs(shares[0] - shares[1]) < 1e-4


def test_what_a_client_uses_after_a_download_fits_its_own_features() -> None:
    """The same with the downloaded body and all samples at once, whatever their order, if beta is 1."""
    method = PFedFDA(beta="local", ridge=RIDGE)
    x, y = CLIENTS[0][0].double().numpy(), CLIENTS[0][1].numpy()
    f = forward(START, x).f
    weight, bias = head(*estimates(f, y), y)
    local = bench(plan_of(method, CLIENTS), 0)
    model = method.personalize(method.client_init(local), down(), local)
    np.testing.assert_allclose(model(CLIENTS[0][0]).detach().numpy(), f @ weight.T + bias, atol=1e-4, rtol=1e-4)


def test_server_half() -> None:
    """Bodies, class means and covariances: means weighted by samples, 11/17 and 6/17."""
    method = PFedFDA()
    central = ServerBench(plan_of(method, CLIENTS), 1)
    ups = [update(method, c)[0].up for c in (0, 1)]
    server = method.aggregate(down(), [Reply(c, ups[c], SIZES[c]) for c in (0, 1)], central)
    for name in ("means", "cov"):
        a, b = (getattr(up, name).double().numpy() for up in ups)
        np.testing.assert_allclose(getattr(server, name).numpy(), (11 * a + 6 * b) / 17, atol=1e-6)
    a, b = (arrays(up.w)[A] for up in ups)
    np.testing.assert_allclose(server.w[A].numpy(), (11 * a + 6 * b) / 17, atol=1e-6)


def test_a_client_without_two_samples_of_a_class_takes_the_global_gaussians() -> None:
    x, y = torch.randn(2, 2), torch.tensor([0, 1])
    method = PFedFDA()
    local = bench(plan_of(method, [(x, y)], epochs=1), 0)
    up = method.local_update(method.client_init(local), down(), local).up
    torch.testing.assert_close(up.means, down().means)
    torch.testing.assert_close(up.cov, down().cov)
