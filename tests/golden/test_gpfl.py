"""GPFL by hand (ICCV 2023, arXiv 2308.10279, Algorithm 1): one round, with several batches in their order.

Forward, in plain tensors: the valve is relu(f (g + 1) + b) with g, b = LayerNorm(relu(W s + u)) of a condition s, which
is the mean embedding for the global features and the class-frequency-weighted one for the personal ones, both of the
embeddings that were received. Loss: CE of the own head on the personal features, CE of the cosines between the global
ones and the embeddings, lam times the mean distance to the received embedding of the class, mu/2 of all squares in GCE
and CoV. Gradients by autograd.
"""

from __future__ import annotations

import pytest
import torch
from byhand import BODY, HEAD, START, C, V, Weights, close, drawn, features, weighted
from tiny import bench, floats, plan_of
from torch import Tensor
from torch.testing import assert_close

from headwise.contract.averaging import Shared
from headwise.contract.method import Reply
from headwise.engine.plan import Plan
from headwise.engine.server_bench import ServerBench
from headwise.methods.gpfl import GPFL, OwnHead

K, BATCH, LR, EPOCHS, SIZES = 2, 4, 0.2, 2, [10, 5]
LABELS = [torch.arange(10) % 3, torch.tensor([2, 0, 2, 2, 0])]
CLIENTS = [
    (torch.randn(n, 2, generator=torch.Generator().manual_seed(n)), y) for n, y in zip(SIZES, LABELS, strict=True)
]
GUIDES = {"gce.weight": (3, K)}
for part in ("gamma", "beta"):
    GUIDES |= {f"{part}.0.weight": (K, K), f"{part}.0.bias": (K,), f"{part}.2.weight": (K,), f"{part}.2.bias": (K,)}
WHOLE = START | {k: torch.empty(shape) for k, shape in GUIDES.items()}
SHARED = (*BODY, *GUIDES)


def plan(method: GPFL) -> Plan:
    return plan_of(method, CLIENTS, batch=BATCH, lr=LR, epochs=EPOCHS)


def valve(w: Weights, f: Tensor, condition: Tensor) -> Tensor:
    def made(part: str) -> Tensor:
        g = (w[f"{part}.0.weight"] @ condition + w[f"{part}.0.bias"]).clamp(min=0)
        normed = (g - g.mean()) / (((g - g.mean()) ** 2).mean() + 1e-5) ** 0.5
        return normed * w[f"{part}.2.weight"] + w[f"{part}.2.bias"]

    return (f * (made("gamma") + 1) + made("beta")).clamp(min=0)


def ce(z: Tensor, y: Tensor) -> Tensor:
    return (z.exp().sum(1).log() - z[torch.arange(len(y)), y]).mean()


def conditions(received: Weights, c: int) -> tuple[Tensor, Tensor]:
    e = received["gce.weight"]
    shares = torch.stack([(LABELS[c] == s).double().mean() for s in range(3)])
    return sum(e[s] for s in range(3)) / 3, sum(shares[s] * e[s] for s in range(3))


def loss(w: Weights, received: Weights, c: int, x: Tensor, y: Tensor, method: GPFL) -> Tensor:
    everyone, mine = conditions(received, c)
    f = features(w, x)
    f_G = valve(w, f, everyone)
    lengths = (f_G**2).sum(1).sqrt().clamp(min=1e-12)[:, None], (w["gce.weight"] ** 2).sum(1).sqrt()
    cosines = f_G @ w["gce.weight"].T / lengths[0] / lengths[1]
    far = torch.stack([((f_G[i] - received["gce.weight"][s]) ** 2).sum() ** 0.5 for i, s in enumerate(y.tolist())])
    decay = sum((w[k] ** 2).sum() for k in GUIDES)
    personal = ce(valve(w, f, mine) @ w[V].T + w[C], y)
    return personal + ce(cosines, y) + method.lam * far.mean() + method.mu / 2 * decay


@pytest.mark.parametrize("c", [0, 1])
@pytest.mark.parametrize("method", [GPFL(), GPFL(lam=0.7, mu=0.0), GPFL(lam=0.0, mu=0.5)], ids=repr)
def test_client_half(method: GPFL, c: int) -> None:
    """Client 1 does not hold class 1, whose embedding has no share in its condition but still is a wrong answer."""
    received, own = drawn(9, SHARED, WHOLE), drawn(c + 10, HEAD)
    local, rng, (x, y) = bench(plan(method), c), torch.Generator(), CLIENTS[c]
    rng.set_state(local.rng.get_state())
    update = method.local_update(OwnHead(floats(own)), Shared(floats(received)), local)
    w = {**received, **own}
    for i in (i for _ in range(EPOCHS) for i in torch.randperm(len(y), generator=rng).split(BATCH)):
        w = {k: t.detach().requires_grad_() for k, t in w.items()}
        slopes = torch.autograd.grad(loss(w, received, c, x[i], y[i], method), list(w.values()))
        w = {k: (t - LR * g).detach() for (k, t), g in zip(w.items(), slopes, strict=True)}
    close(dict(update.me.h), {k: w[k] for k in HEAD})
    close(dict(update.up.w), {k: t for k, t in w.items() if k not in HEAD})
    personal = valve(w, features(w, x), conditions(received, c)[1]) @ w[V].T + w[C]
    assert_close(update.model(x).double(), personal, atol=5e-6, rtol=0)


def test_personal_model_before_training() -> None:
    received, own, (x, _) = drawn(9, SHARED, WHOLE), drawn(11, HEAD), CLIENTS[1]
    model = GPFL().personalize(OwnHead(floats(own)), Shared(floats(received)), bench(plan(GPFL()), 1))
    wanted = valve(received, features(received, x), conditions(received, 1)[1]) @ own[V].T + own[C]
    assert_close(model(x).double(), wanted, atol=5e-6, rtol=0)


def test_server_half() -> None:
    """n-weighted means of the extractor, the embeddings and the valve; no head travels."""
    method = GPFL()
    central, ups = ServerBench(plan(method), 1), [drawn(seed, SHARED, WHOLE) for seed in (5, 6)]
    first = method.server_init(central)
    close({k: first.w[k] for k in BODY}, {k: START[k] for k in BODY})
    assert {k: tuple(t.shape) for k, t in first.w.items() if k not in BODY} == GUIDES
    assert not torch.equal(first.w["gamma.0.weight"], first.w["beta.0.weight"])
    server = method.aggregate(first, [Reply(c, Shared(floats(ups[c])), SIZES[c]) for c in (0, 1)], central)
    close(dict(server.w), weighted(ups, tuple(ups[0]), SIZES))
