"""FedCP by hand (KDD 2023, arXiv 2307.01217, Algorithm 1): one round, with several batches in their order.

Forward, in plain tensors: v = sum of the rows of the own head's weight, divided by its length; the policy network gives
relu(LayerNorm(W (f v) + u)), its 2K numbers in two rows of K; with Gumbel noise -log E, E exponential, a softmax over
each pair gives a and b; z = V_i (a f) + c_i + V_g (b f) + c_g. Loss: cross-entropy + lam MMD, by definition in loops;
gradients by autograd with respect to the local body, the own head and the policy network alone.
"""

from __future__ import annotations

import math

import pytest
import torch
from byhand import BODY, HEAD, START, A, B, C, V, Weights, close, drawn, features, weighted
from tiny import bench, floats, plan_of
from torch import Tensor
from torch.testing import assert_close

from headwise.contract.averaging import Shared
from headwise.contract.method import Reply
from headwise.engine.plan import Plan
from headwise.engine.server_bench import ServerBench
from headwise.methods.fedcp import FedCP, OwnHead

K, BATCH, LR, EPOCHS, SIZES = 2, 4, 0.2, 2, [10, 6]
CLIENTS = [(torch.randn(n, 2, generator=torch.Generator().manual_seed(n)), torch.arange(n) % 3) for n in SIZES]
POLICY = {"cpn.0.weight": (2 * K, K), "cpn.0.bias": (2 * K,), "cpn.1.weight": (2 * K,), "cpn.1.bias": (2 * K,)}
WHOLE = START | {k: torch.empty(shape) for k, shape in POLICY.items()}


def plan(method: FedCP) -> Plan:
    return plan_of(method, CLIENTS, batch=BATCH, lr=LR, epochs=EPOCHS)


def scores(w: Weights, world: Weights, v: Tensor, f: Tensor, noise: Tensor | float = 0.0) -> Tensor:
    g = (f * v) @ w["cpn.0.weight"].T + w["cpn.0.bias"]
    centred = g - g.mean(1, keepdim=True)
    normed = centred / ((centred**2).mean(1, keepdim=True) + 1e-5) ** 0.5
    policy = (normed * w["cpn.1.weight"] + w["cpn.1.bias"]).clamp(min=0)
    e = (policy.view(len(f), 2, K) + noise).exp()
    a, b = e[:, 0] / e.sum(1), e[:, 1] / e.sum(1)
    return (a * f) @ w[V].T + w[C] + (b * f) @ world[V].T + world[C]


def mmd(p: Tensor, q: Tensor) -> Tensor:
    def kernel(s: Tensor, t: Tensor) -> Tensor:
        pairs = [torch.exp(-((i - j) ** 2).sum() / (2 * width)) for i in s for j in t for width in (10, 15, 20, 50)]
        return torch.stack(pairs).sum() / (len(s) * len(t))

    return kernel(p, p) + kernel(q, q) - 2 * kernel(p, q)


def context(head: Weights) -> Tensor:
    return head[V].sum(0) / (head[V].sum(0) ** 2).sum() ** 0.5


def train(w: Weights, world: Weights, c: int, lam: float, rng: torch.Generator) -> Weights:
    (x, y), v = CLIENTS[c], context(w)
    for _ in range(EPOCHS):
        for i in torch.randperm(len(y), generator=rng).split(BATCH):
            w = {k: t.detach().requires_grad_() for k, t in w.items()}
            noise = -torch.empty(len(i), 2, K).exponential_(generator=rng).log().double()
            f = features(w, x[i])
            z = scores(w, world, v, f, noise)
            ce = (z.exp().sum(1).log() - z[torch.arange(len(i)), y[i]]).mean()
            slopes = torch.autograd.grad(ce + lam * mmd(f, features(world, x[i])), list(w.values()))
            w = {k: (t - LR * g).detach() for (k, t), g in zip(w.items(), slopes, strict=True)}
    return w


def situation(c: int) -> tuple[Weights, Weights]:
    """What the client works with, its own head on the global body, and what it was sent."""
    world, own = drawn(9, like=WHOLE), drawn(c + 10, like=WHOLE)
    return {**world, V: own[V], C: own[C]}, world


@pytest.mark.parametrize("lam", [5.0, 0.5, 0.0])
def test_client_half(lam: float) -> None:
    method, (mine, world) = FedCP(lam=lam), situation(0)
    local, rng = bench(plan(method)), torch.Generator()
    rng.set_state(local.rng.get_state())
    update = method.local_update(OwnHead(floats({k: mine[k] for k in HEAD})), Shared(floats(world)), local)
    w = train(mine, world, 0, lam, rng)
    close(dict(update.me.h), {k: w[k] for k in HEAD})
    sent = {k: (w[k] + world[k]) / 2 if k in HEAD else w[k] for k in w}
    close(dict(update.up.w), sent)
    x = CLIENTS[1][0]  # judged without noise, in the context that it was trained in
    assert_close(update.model(x).double(), scores(w, world, context(mine), features(w, x)), atol=5e-6, rtol=0)


def test_personal_model_before_training() -> None:
    """The global body and policy network, both heads, and no noise: the same scores every time."""
    method, (mine, world), x = FedCP(), situation(1), CLIENTS[1][0]
    me, down = OwnHead(floats({k: mine[k] for k in HEAD})), Shared(floats(world))
    model = method.personalize(me, down, bench(plan(method), 1))
    assert_close(model(x).double(), scores(mine, world, context(mine), features(world, x)), atol=5e-6, rtol=0)
    assert torch.equal(model(x), model(x))


def test_server_half() -> None:
    """n-weighted means of the extractor, the mixed head and the policy network; at first a common draw of all."""
    method = FedCP()
    central, ups = ServerBench(plan(method), 1), [drawn(seed, like=WHOLE) for seed in (5, 6)]
    first = method.server_init(central)
    close({k: first.w[k] for k in BODY + HEAD}, START)
    assert {k: tuple(t.shape) for k, t in first.w.items() if k in POLICY} == POLICY
    assert first.w.numel() == START[A].numel() + START[B].numel() + 9 + 2 * K**2 + 6 * K
    server = method.aggregate(first, [Reply(c, Shared(floats(ups[c])), SIZES[c]) for c in (0, 1)], central)
    close(dict(server.w), weighted(ups, tuple(ups[0]), SIZES))


def test_the_noise_is_gumbels() -> None:
    """Mean 0.5772 and variance pi^2 / 6, as -log of exponential variables has them."""
    noise = -torch.empty(100_000).exponential_(generator=torch.Generator().manual_seed(0)).log()
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.02)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.05)
