"""One or two rounds of each method on a network of 15 numbers, against the papers' equations computed by hand.

All batches are full, so their order does not matter; `test_golden_primitives` looks at the order.
"""

from __future__ import annotations

import math

import byhand
import pytest
import torch
from byhand import BODY, CLIENTS, HEAD, SIZES, START, TOTAL, A, Weights, close, descend, gradient, only, weighted
from tiny import plan_of, run

from headwise.methods.fedavg import FedAvg
from headwise.methods.fedavg_ft import FedAvgFT
from headwise.methods.fedper import FedPer
from headwise.methods.fedprox import FedProx
from headwise.methods.fedrep import FedRep
from headwise.methods.lg_fedavg import LGFedAvg
from headwise.methods.standalone import Standalone

LR, EPOCHS = 0.5, 2


def cross_entropy(w: Weights, x: torch.Tensor, y: torch.Tensor) -> float:
    z = byhand.features(w, x) @ w["head.weight"].T + w["head.bias"]
    return -sum(math.log(math.exp(z[i, k]) / z[i].exp().sum().item()) for i, k in enumerate(y.tolist())) / len(y)


def test_gradient_by_hand_is_that_of_finite_differences() -> None:
    """The yardstick itself: (L(w + h) - L(w - h)) / 2h for every one of the 15 numbers."""
    x, y = CLIENTS[2]
    for name, g in gradient(START, x, y).items():
        for i in range(g.numel()):
            up, down = ({k: t.clone() for k, t in START.items()} for _ in range(2))
            up[name].view(-1)[i] += 1e-6
            down[name].view(-1)[i] -= 1e-6
            slope = (cross_entropy(up, x, y) - cross_entropy(down, x, y)) / 2e-6
            assert slope == pytest.approx(g.view(-1)[i].item(), abs=1e-8)


def test_standalone() -> None:
    """w_i <- w_i - lr grad L_i(w_i), E times per round, never mixed with anybody's: two rounds are 2E steps."""
    end = run(plan_of(Standalone(), rounds=2, epochs=EPOCHS))
    for c, (x, y) in enumerate(CLIENTS):
        close(dict(end.states[c].me.w), descend(START, x, y, LR, 2 * EPOCHS))
    assert [row["bytes_up"] + row["bytes_down"] for row in end.rows] == [0, 0]


def test_fedavg() -> None:
    """McMahan et al., Algorithm 1. ClientUpdate: w_k <- w_t - lr grad l(w; b), E times with one batch of all samples;
    server: w_{t+1} <- sum_k n_k/n w_k with n = (1, 2, 3), n = 6; then the same from w_{t+1}."""
    w = START
    for _ in range(2):
        w = weighted([descend(w, x, y, LR, EPOCHS) for x, y in CLIENTS])
    end = run(plan_of(FedAvg(), rounds=2, epochs=EPOCHS))
    close(dict(end.server.w), w)
    losses = [line["pre"]["test"]["loss"] for line in end.lines if line["round"] == 2]
    assert losses == pytest.approx([cross_entropy(w, x, y) for x, y in CLIENTS], abs=1e-5)


def test_fedavg_with_some_clients_divides_by_their_samples_alone() -> None:
    """With S_t drawn, the weights are n_k / sum_{j in S_t} n_j: they add up to one."""
    end = run(plan_of(FedAvg(), ratio=0.67))
    chosen = end.rows[0]["clients"]
    assert len(chosen) == 2
    parts = [descend(START, *CLIENTS[c], LR) for c in chosen]
    close(dict(end.server.w), weighted(parts, sizes=[SIZES[c] for c in chosen]))


def test_fedavg_ft() -> None:
    """Wang et al., Section 2: training is FedAvg's; a client uses w after fine-tuning it on its own samples."""
    w = weighted([descend(START, x, y, LR) for x, y in CLIENTS])
    end = run(plan_of(FedAvgFT(finetune_epochs=3)))
    close(dict(end.server.w), w)
    pre = [line["pre"]["test"]["loss"] for line in end.lines]
    assert pre == pytest.approx([cross_entropy(descend(w, x, y, LR, 3), x, y) for x, y in CLIENTS], abs=1e-5)


def test_fedavg_ft_of_the_head_leaves_the_body() -> None:
    """The variant that fine-tunes the head alone: V and c move, A and b do not."""
    w = weighted([descend(START, x, y, LR) for x, y in CLIENTS])
    end = run(plan_of(FedAvgFT(finetune_epochs=3, finetune="head")))
    wanted = [cross_entropy(descend(w, x, y, LR, 3, only=HEAD), x, y) for x, y in CLIENTS]
    assert [line["pre"]["test"]["loss"] for line in end.lines] == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("mu", [0.0, 0.1, 1.0])
def test_fedprox(mu: float) -> None:
    """Li et al., Eq. (2): min_w F_k(w) + mu/2 ||w - w^t||^2, whose gradient is grad F_k(w) + mu (w - w^t). The first
    step is FedAvg's, since w = w^t there; from the second on the pull counts, so three steps are taken."""
    parts: list[Weights] = []
    for x, y in CLIENTS:
        w = START
        for _ in range(3):
            g = gradient(w, x, y)
            w = {k: w[k] - LR * (g[k] + mu * (w[k] - START[k])) for k in w}
        parts.append(w)
    end = run(plan_of(FedProx(mu=mu), epochs=3))
    close(dict(end.server.w), weighted(parts))
    if mu:
        assert not torch.allclose(end.server.w[A].double(), weighted([descend(START, *c, LR, 3) for c in CLIENTS])[A])


def test_fedper() -> None:
    """Arivazhagan et al., Algorithm 1: (W_B, W_Pj) <- SGD(W_B, W_Pj) together; the server takes the weighted mean of
    the W_B; W_Pj stays at client j and is where its next round starts."""
    body, heads = only(START, BODY), [only(START, HEAD) for _ in CLIENTS]
    for _ in range(2):
        trained = [descend(body | h, x, y, LR, EPOCHS) for h, (x, y) in zip(heads, CLIENTS, strict=True)]
        body, heads = weighted(trained, BODY), [only(w, HEAD) for w in trained]
    end = run(plan_of(FedPer(), rounds=2, epochs=EPOCHS))
    close(dict(end.server.w), body)
    for c, h in enumerate(heads):
        close(dict(end.states[c].me.h), h)
    assert not torch.allclose(heads[0]["head.bias"], heads[1]["head.bias"])


def test_fedrep() -> None:
    """Collins et al., Algorithm 1: first h_i <- GRD(f_i(h_i, phi), h_i) tau times under the old body, then
    phi_i <- GRD(f_i(h_i, phi), phi) with the new head held fixed; server: mean of the phi_i (here weighted by n_i)."""
    body, heads = only(START, BODY), [only(START, HEAD) for _ in CLIENTS]
    for _ in range(2):
        trained: list[Weights] = []
        for h, (x, y) in zip(heads, CLIENTS, strict=True):
            w = descend(body | h, x, y, LR, steps=3, only=HEAD)
            trained.append(descend(w, x, y, LR, EPOCHS, only=BODY))
        body, heads = weighted(trained, BODY), [only(w, HEAD) for w in trained]
    end = run(plan_of(FedRep(head_epochs=3), rounds=2, epochs=EPOCHS))
    close(dict(end.server.w), body)
    for c, h in enumerate(heads):
        close(dict(end.states[c].me.h), h)


def test_lg_fedavg() -> None:
    """Liang et al., Algorithm 1: theta_l (body, kept) and theta_g (head, sent) are updated together; the server takes
    the weighted mean of the heads."""
    head, bodies = only(START, HEAD), [only(START, BODY) for _ in CLIENTS]
    for _ in range(2):
        trained = [descend(b | head, x, y, LR, EPOCHS) for b, (x, y) in zip(bodies, CLIENTS, strict=True)]
        head, bodies = weighted(trained, HEAD), [only(w, BODY) for w in trained]
    end = run(plan_of(LGFedAvg(), rounds=2, epochs=EPOCHS))
    close(dict(end.server.w), head)
    for c, b in enumerate(bodies):
        close(dict(end.states[c].me.phi), b)


@pytest.mark.parametrize(
    ("method", "numbers"),
    [(FedAvg(), 15), (FedProx(), 15), (FedAvgFT(), 15), (FedPer(), 6), (FedRep(), 6), (LGFedAvg(), 9)],
    ids=lambda v: type(v).__name__,
)
def test_traffic(method: object, numbers: int) -> None:
    """The body has 2*2 + 2 = 6 numbers, the head 3*2 + 3 = 9; each of three clients gets and sends them at 4 bytes."""
    row = run(plan_of(method)).rows[0]
    assert row["bytes_down"] == row["bytes_up"] == 3 * 4 * numbers


def test_accuracy_over_clients() -> None:
    """6 samples: sum of correct / sum of samples, and the plain mean of the clients' own accuracies."""
    w = weighted([descend(START, x, y, LR) for x, y in CLIENTS])
    hits = [
        int((byhand.features(w, x) @ w["head.weight"].T + w["head.bias"]).argmax(1).eq(y).sum()) for x, y in CLIENTS
    ]
    row = run(plan_of(FedAvg())).rows[0]["pre"]
    assert row["accuracy"] == pytest.approx(sum(hits) / TOTAL)
    assert row["client_mean"] == pytest.approx(sum(h / n for h, n in zip(hits, SIZES, strict=True)) / 3)
