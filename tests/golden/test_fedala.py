"""FedALA by hand (arXiv 2212.01197, Algorithm 1), with several batches in their order.

The p highest layers start from Theta^ = Theta_i + (Theta - Theta_i) * W, the others from Theta. By the chain rule
dL/dW = dL/dTheta^ * (Theta - Theta_i), element by element; W is clipped to [0, 1] after each step. It is learned on a
contiguous window of s of the samples, and the whole model then on all of them. dL/dTheta^ is `byhand.gradient`.
"""

from __future__ import annotations

import pytest
import torch
from byhand import BODY, HEAD, START, close, drawn, gradient
from tiny import bench, floats, plan_of
from torch import Tensor

from headwise.contract.averaging import Shared
from headwise.engine.client.client_bench import ClientBench
from headwise.methods.fedala import FedALA, Own

N, BATCH, LR, EPOCHS = 11, 4, 0.2, 2
X, Y = torch.randn(N, 2, generator=torch.Generator().manual_seed(N)), torch.arange(N) % 3


class ByHand:
    """`local` only tells the order of the samples."""

    def __init__(self, names: tuple[str, ...], local: ClientBench) -> None:
        self.world, self.own = drawn(1), drawn(2, names)
        self.W = {k: t.abs() % 1 for k, t in drawn(3, names).items()}
        self.names, self.rng, self.epochs = names, torch.Generator(), 0
        self.rng.set_state(local.rng.get_state())
        self.aggregate()

    def records(self, begun: bool) -> tuple[Own, Shared]:
        return Own(floats(self.own), floats(self.W), begun), Shared(floats(self.world))

    def aggregate(self) -> None:
        mixed = {k: self.own[k] + (self.world[k] - self.own[k]) * self.W[k] for k in self.names}
        self.w = {**self.world, **mixed}

    def order(self, n: int) -> tuple[Tensor, ...]:
        return torch.randperm(n, generator=self.rng).split(BATCH)

    def learn_weights(self, share: float, lr: float, epochs: int) -> None:
        size = int(share * N)
        first = int(torch.randint(N - size + 1, (), generator=self.rng))
        x, y = X[first : first + size], Y[first : first + size]
        for i in (i for _ in range(epochs) for i in self.order(size)):
            g = gradient(self.w, x[i], y[i])
            self.W = {k: (t - lr * g[k] * (self.world[k] - self.own[k])).clamp(0, 1) for k, t in self.W.items()}
            self.aggregate()

    def train(self) -> None:
        for i in (i for _ in range(EPOCHS) for i in self.order(N)):
            g = gradient(self.w, X[i], Y[i])
            self.w = {k: t - LR * g[k] for k, t in self.w.items()}


CASES = [
    (FedALA(), HEAD, True, 1),
    (FedALA(share=0.5, weight_lr=0.3), HEAD, True, 1),
    (FedALA(p=2), BODY + HEAD, True, 1),
    (FedALA(p=7, weight_lr=0.1), BODY + HEAD, True, 1),
    (FedALA(cap=3), HEAD, False, 3),
    (FedALA(p=2, threshold=100.0), BODY + HEAD, False, 11),
]


@pytest.mark.parametrize(("method", "names", "begun", "epochs"), CASES, ids=repr)
def test_client_half(method: FedALA, names: tuple[str, ...], begun: bool, epochs: int) -> None:
    """One epoch on W, but in the first such round until the losses settle: after 11 epochs at the earliest."""
    local = bench(plan_of(method, [(X, Y)], batch=BATCH, lr=LR, epochs=EPOCHS), 0, 2)
    hand = ByHand(names, local)
    records = hand.records(begun)
    update = method.local_update(*records, local)
    hand.learn_weights(method.share, method.weight_lr, epochs)
    before = hand.w
    hand.train()
    close(dict(update.up.w), hand.w)
    close(dict(update.me.W), hand.W)
    close(dict(update.me.theta), {k: hand.w[k] for k in names})
    assert update.me.begun
    again = bench(plan_of(method, [(X, Y)], batch=BATCH, lr=LR, epochs=EPOCHS), 0, 2)
    close(method.personalize(*records, again).state_dict(), before)  # after the aggregation, before the training


def test_losses_that_do_not_settle_end_at_the_cap() -> None:
    """Weights that jump between 0 and 1 keep the losses apart."""
    method = FedALA(weight_lr=1e4, threshold=1e-6, cap=25)
    local = bench(plan_of(method, [(X, Y)], batch=BATCH, lr=LR, epochs=EPOCHS), 0, 2)
    hand = ByHand(HEAD, local)
    update = method.local_update(*hand.records(False), local)
    hand.learn_weights(0.8, 1e4, 25)
    close(dict(update.me.W), hand.W)


def test_beginning() -> None:
    """All weights are 1; while one's own layers are the global ones, nothing is learned and no order is drawn."""
    method = FedALA()
    local = bench(plan_of(method, [(X, Y)], batch=BATCH, lr=LR, epochs=EPOCHS), 0, 1)
    first = method.client_init(local)
    close(dict(first.theta), {k: START[k] for k in HEAD})
    close(dict(first.W), {k: torch.ones_like(START[k]) for k in HEAD})
    rng = local.rng.get_state()
    close(method.personalize(first, Shared(floats(START)), local).state_dict(), START)
    assert torch.equal(local.rng.get_state(), rng)
    assert not method.local_update(first, Shared(floats(START)), local).me.begun
