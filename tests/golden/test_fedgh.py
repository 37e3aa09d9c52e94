"""One round of FedGH by hand (ACM MM 2023, arXiv 2303.13137, Eqs. (3)-(5), Algorithm 1).

Representations are never negative (they come out of max(., 0)), so a body with A = I, b = 0 hands them on unchanged,
and `byhand.gradient` under it is the gradient of the header's loss on them.
"""

from __future__ import annotations

import pytest
import torch
from byhand import BODY, HEAD, START, A, B, Weights, close, drawn, features, gradient
from tiny import bench, floats, plan_of
from torch import Tensor
from torch.testing import assert_close

from headwise.contract.averaging import Shared
from headwise.contract.benches import ClassMeans
from headwise.contract.method import Reply
from headwise.engine.plan import Plan
from headwise.engine.server_bench import ServerBench
from headwise.methods.fedgh import FedGH, OwnBody

BATCH, LR, EPOCHS = 4, 0.2, 2
CLIENTS = [
    (torch.randn(n, 2, generator=torch.Generator().manual_seed(seed)), torch.tensor(y))
    for seed, (n, y) in enumerate([(6, [2, 0, 2, 2, 0, 2]), (3, [1, 1, 1]), (5, [1, 2, 0, 1, 1])])
]
LARS = [([0, 2], [[0.5, 1.0], [2.0, 0.25]]), ([1], [[1.0, 1.5]]), ([0, 1, 2], [[0.75, 0.0], [0.25, 2.0], [1.5, 1.0]])]
"""what three clients send: labels and representations"""


def plan(method: FedGH) -> Plan:
    return plan_of(method, CLIENTS, batch=BATCH, lr=LR, epochs=EPOCHS)


def replies() -> list[Reply[ClassMeans]]:
    ups = [ClassMeans(torch.tensor(s).int(), torch.tensor(f)) for s, f in LARS]
    return [Reply(c, up, len(CLIENTS[c][1])) for c, up in enumerate(ups)]


def header_step(theta: Weights, means: Tensor, labels: Tensor, lr: float) -> Weights:
    """Eq. (4) with the mean cross-entropy of these representations."""
    g = gradient({A: torch.eye(2).double(), B: torch.zeros(2).double(), **theta}, means, labels)
    return {k: t - lr * g[k] for k, t in theta.items()}


@pytest.mark.parametrize("c", [0, 1, 2])
def test_client_half(c: int) -> None:
    """The header is replaced, the whole model trained, and R^s is the mean over all samples of class s after that."""
    method, phi, theta = FedGH(), drawn(1, BODY), drawn(2, HEAD)
    local, rng, (x, y) = bench(plan(method), c), torch.Generator(), CLIENTS[c]
    rng.set_state(local.rng.get_state())
    update = method.local_update(OwnBody(floats(phi)), Shared(floats(theta)), local)
    w = {**phi, **theta}
    for i in (i for _ in range(EPOCHS) for i in torch.randperm(len(y), generator=rng).split(BATCH)):
        g = gradient(w, x[i], y[i])
        w = {k: t - LR * g[k] for k, t in w.items()}
    f, labels = features(w, x), sorted(set(y.tolist()))
    means = torch.stack([f[y == s].sum(0) / (y == s).sum() for s in labels])
    assert update.up.labels.tolist() == labels
    assert_close(update.up.means.double(), means, atol=2e-6, rtol=0)
    close(dict(update.me.phi), {k: w[k] for k in BODY})
    close(update.model.state_dict(), w)


def test_the_personal_model_is_the_global_header_on_the_own_body() -> None:
    """Eq. (5)."""
    phi, theta = drawn(1, BODY), drawn(2, HEAD)
    model = FedGH().personalize(OwnBody(floats(phi)), Shared(floats(theta)), bench(plan(FedGH())))
    close(model.state_dict(), {**phi, **theta})


def steps(header_step: str, rng: torch.Generator) -> list[tuple[Tensor, Tensor]]:
    """The representations of each step of one pass, in the order of the clients and then of the labels."""
    each = [(torch.tensor(f), torch.tensor(s)) for s, f in LARS]
    if header_step == "per_client":
        return each
    means, labels = torch.cat([f for f, _ in each]), torch.cat([s for _, s in each])
    order = torch.arange(6).split(1) if header_step == "per_proto" else torch.randperm(6, generator=rng).split(4)
    return [(means[i], labels[i]) for i in order]


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("kind", ["per_client", "per_proto", "pooled"])
def test_server_half(kind: str, epochs: int) -> None:
    """Eq. (4): 3 steps per pass on a client's mean loss, 6 on single ones, or 2 on 4 and 2 that were shuffled."""
    lr = 0.5
    method = FedGH(header_lr=lr, header_step=kind, header_epochs=epochs, pooled_batch=4)
    central, theta, rng = ServerBench(plan(method), 1), drawn(2, HEAD), torch.Generator()
    rng.set_state(central.rng.get_state())
    server = method.aggregate(Shared(floats(theta)), replies(), central)
    for _ in range(epochs):
        for means, labels in steps(kind, rng):
            theta = header_step(theta, means, labels, lr)
    close(dict(server.w), theta)


def test_a_header_that_does_not_learn() -> None:
    """header_lr = 0, as the public code behaves: the header stays as it was drawn, bit for bit."""
    for kind in ("per_client", "per_proto", "pooled"):
        method = FedGH(header_lr=0.0, header_step=kind)
        central = ServerBench(plan(method), 1)
        first = method.server_init(central)
        close(dict(first.w), {k: START[k] for k in HEAD})
        server = method.aggregate(first, replies(), central)
        assert all(torch.equal(server.w[k], first.w[k]) for k in HEAD)


@pytest.mark.parametrize("kind", ["per_client", "per_proto", "pooled"])
def test_a_round_without_answers_changes_nothing(kind: str) -> None:
    theta = drawn(2, HEAD)
    server = FedGH(header_step=kind).aggregate(Shared(floats(theta)), [], ServerBench(plan(FedGH()), 1))
    close(dict(server.w), theta)
