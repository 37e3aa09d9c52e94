"""One round of FedAH by hand (arXiv 2412.01295, Eqs. (2)-(6), Algorithm 1), with several batches in their order.

Eq. (3) makes the head h^ = h_i + (h - h_i) * W, so by the chain rule dL/dW = dL/dh^ * (h - h_i), element by element;
dL/dh^ and dL/dr are `byhand.gradient`.
"""

from __future__ import annotations

import pytest
import torch
from byhand import BODY, HEAD, START, A, B, Weights, close, drawn, gradient, weighted
from tiny import Client, bench, floats, plan_of
from torch import Tensor, nn

from headwise.contract.averaging import Averaged, Shared
from headwise.contract.method import Reply
from headwise.engine.client.client_bench import ClientBench
from headwise.engine.plan import Plan
from headwise.engine.server_bench import ServerBench
from headwise.methods.fedah import FedAH, Own
from headwise.models.split import SplitModel
from headwise.params import Params

BATCH, LR, DECAY, EPOCHS = 4, 0.2, 0.5, 2
SIZES = [11, 6]


def client(n: int) -> Client:
    return torch.randn(n, 2, generator=torch.Generator().manual_seed(n)), torch.arange(n) % 3


CLIENTS = [client(n) for n in SIZES]


def plan(method: FedAH) -> Plan:
    return plan_of(method, CLIENTS, batch=BATCH, lr=LR, epochs=EPOCHS, lr_decay=DECAY)


def situation(c: int) -> tuple[Weights, Weights, Weights]:
    """In the middle of a run: a client's head, its weights, neither 0 nor 1, and the global model."""
    return drawn(c + 10, HEAD), {k: t.abs() % 1 for k, t in drawn(c + 20, HEAD).items()}, drawn(9)


def records(c: int) -> tuple[Own, Shared]:
    h_i, W, w = situation(c)
    return Own(floats(h_i), floats(W)), Shared(floats(w))


class ByHand:
    """The client half in plain tensors; `local` only tells the order of the samples."""

    def __init__(self, c: int, local: ClientBench) -> None:
        self.h_i, self.W, self.w = situation(c)
        self.h = {k: self.w[k] for k in HEAD}
        (self.x, self.y), self.rng, self.passed = CLIENTS[c], torch.Generator(), set[int]()
        self.rng.set_state(local.rng.get_state())

    def batches(self, epochs: int) -> list[Tensor]:
        return [i for _ in range(epochs) for i in torch.randperm(len(self.y), generator=self.rng).split(BATCH)]

    def aggregate(self) -> None:
        """Eq. (3)."""
        self.w = {**self.w, **{k: self.h_i[k] + (self.h[k] - self.h_i[k]) * self.W[k] for k in HEAD}}

    def learn_weights(self, lr: float, epochs: int) -> None:
        """Eq. (4), and after each step sigma(w) = max(0, min(1, w))."""
        self.aggregate()
        for i in self.batches(epochs):
            g = gradient(self.w, self.x[i], self.y[i])
            raw = {k: self.W[k] - lr * g[k] * (self.h[k] - self.h_i[k]) for k in HEAD}
            self.passed |= {bound for t in raw.values() for bound, out in ((0, t < 0), (1, t > 1)) if out.any()}
            self.W = {k: t.clamp(0, 1) for k, t in raw.items()}
            self.aggregate()

    def train(self, names: tuple[str, ...], lr: float, epochs: int) -> None:
        """Eq. (5) on the head, Eq. (6) on the body."""
        for i in self.batches(epochs):
            g = gradient(self.w, self.x[i], self.y[i])
            self.w = {k: t - lr * g[k] if k in names else t for k, t in self.w.items()}

    def head(self) -> Weights:
        return {k: self.w[k] for k in HEAD}


@pytest.mark.parametrize(
    ("method", "rate"),
    [
        (FedAH(), 1.0),
        (FedAH(weight_lr="local"), DECAY * LR),
        (FedAH(weight_lr=3.0, weight_epochs=2, head_epochs=3), 3.0),
        (FedAH(weight_epochs=0), 1.0),
        (FedAH(head_epochs=0), 1.0),
    ],
    ids=repr,
)
def test_client_half(method: FedAH, rate: float) -> None:
    """Eqs. (4), (3), (5), (6) in this order, three batches per epoch; in round 2 the model's rate has decayed once."""
    local = bench(plan(method), 0, 2)
    hand = ByHand(0, local)
    update = method.local_update(*records(0), local)
    hand.learn_weights(rate, method.weight_epochs)
    hand.train(HEAD, DECAY * LR, method.head_epochs)
    hand.train(BODY, DECAY * LR, EPOCHS)
    close(dict(update.up.w), hand.w)
    close(dict(update.me.W), hand.W)
    close(dict(update.me.h), hand.head())
    if method.weight_epochs and rate >= 1:
        assert hand.passed == {0, 1}  # the case is one in which both bounds matter, and not all end there
        assert any(((t > 0) & (t < 1)).any() for t in hand.W.values())


def test_the_personal_model_is_the_aggregate_head_on_the_global_body() -> None:
    """Algorithm 1 returns {r, h^_i}: lines 6 and 7, without 8 and 9. With refresh, idle clients keep its head and W."""
    method = FedAH(refresh="all")
    local = bench(plan(method), 1, 2)
    hand = ByHand(1, local)
    hand.learn_weights(1.0, 1)
    close(method.personalize(*records(1), local).state_dict(), hand.w)
    kept = method.idle_update(*records(1), bench(plan(method), 1, 2))
    close(dict(kept.h), hand.head())
    close(dict(kept.W), hand.W)
    assert method.updates_idle() and not FedAH().updates_idle()


def test_server_half() -> None:
    """Eq. (2) over the round's clients: k_i = 11/17 and 6/17, for body and head alike; that is the global model."""
    method, central = FedAH(), ServerBench(plan(FedAH()), 2)
    ups = [method.local_update(*records(c), bench(plan(method), c, 2)).up for c in (0, 1)]
    before = Averaged(records(0)[1].w, None, None)
    server = method.aggregate(before, [Reply(c, ups[c], SIZES[c]) for c in (0, 1)], central)
    expected = weighted([{k: t.double() for k, t in up.w.items()} for up in ups], sizes=SIZES)
    close(dict(server.w), expected)
    close(method.global_model(server, central).state_dict(), expected)


def test_beginning() -> None:
    """Line 1: everybody has the initial model; all weights are `initial_weight`."""
    method = FedAH(initial_weight=0.25)
    first = method.client_init(bench(plan(method), 0, 0))
    close(dict(first.h), {k: START[k] for k in HEAD})
    close(dict(first.W), {k: torch.full_like(START[k], 0.25) for k in HEAD})
    close(dict(method.server_init(ServerBench(plan(method), 0)).w), START)


def test_batchnorm_is_at_rest_while_weights_and_head_learn() -> None:
    """In evaluation mode a layer of BatchNorm after a linear one is a linear layer again: A / s, (b - m) / s, with the
    mean m and the deviation s that this client kept. W is learned on that body, and m and s do not move."""
    network = SplitModel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.ReLU()), nn.Linear(2, 3)).eval()
    made = plan_of(FedAH(), CLIENTS, model=network, batch=BATCH, lr=LR, epochs=EPOCHS, lr_decay=DECAY)
    m, s = torch.tensor([0.5, -0.25]).double(), torch.tensor([2.0, 0.5]).double()
    kept = floats({"body.1.running_mean": m, "body.1.running_var": s**2 - 1e-5})
    local = ClientBench(made, 0, 2, purpose="fit", kept=kept, trained=0)
    me, down = records(0)
    affine = Params({"body.1.weight": torch.ones(2), "body.1.bias": torch.zeros(2)})
    hand = ByHand(0, local)
    hand.w = {**hand.w, A: hand.w[A] / s[:, None], B: (hand.w[B] - m) / s}
    hand.learn_weights(1.0, 1)
    model, W = FedAH()._aggregate(me, Shared(down.w | affine), local)
    close(dict(W), hand.W)
    close(dict(model.state("head")), {k: hand.w[k] for k in HEAD})
    local.sgd(model, only=model.head)
    after = model.state("body")
    close({k: after[k] for k in kept}, {k: t.double() for k, t in kept.items()})
