"""FML by hand (arXiv 2006.16765, Algorithm 1): one round with several batches in their order.

With p = softmax of one model and q of the other, held fixed, KL(q || p) = 1/n sum sum_k q_k (log q_k - log p_k) has the
derivative (p - q) / n with respect to the first one's logits, so its loss a CE + (1 - a) KL has

    dL/dz = (a (p - onehot(y)) + (1 - a) (p - q)) / n.
"""

from __future__ import annotations

import pytest
import torch
from byhand import START, A, B, C, V, Weights, close, drawn, features, weighted
from tiny import bench, floats, plan_of
from torch import Tensor

from headwise.contract.averaging import Shared
from headwise.contract.method import Reply
from headwise.engine.server_bench import ServerBench
from headwise.methods.fml import FML, OwnModel

BATCH, LR, EPOCHS, SIZES = 4, 0.3, 2, [10, 6]
CLIENTS = [(torch.randn(n, 2, generator=torch.Generator().manual_seed(n)), torch.arange(n) % 3) for n in SIZES]


def predictions(w: Weights, x: Tensor) -> Tensor:
    e = (features(w, x) @ w[V].T + w[C]).exp()
    return e / e.sum(1, keepdim=True)


def slope(w: Weights, other: Weights, x: Tensor, y: Tensor, a: float) -> Weights:
    p, q, f = predictions(w, x), predictions(other, x), features(w, x)
    dz = (a * (p - torch.eye(3).double()[y]) + (1 - a) * (p - q)) / len(y)
    da = (dz @ w[V]) * (f > 0)
    return {A: da.T @ x.double(), B: da.sum(0), V: dz.T @ f, C: dz.sum(0)}


def train(c: int, own: Weights, meme: Weights, method: FML, rng: torch.Generator) -> tuple[Weights, Weights, bool]:
    """Both models from their values before each batch; whether clipping ever mattered."""
    (x, y), clipped = CLIENTS[c], False
    for i in (i for _ in range(EPOCHS) for i in torch.randperm(len(y), generator=rng).split(BATCH)):
        g = slope(own, meme, x[i], y[i], method.alpha), slope(meme, own, x[i], y[i], method.beta)
        norm = sum((t**2).sum() for each in g for t in each.values()) ** 0.5
        scale = min(1.0, float(method.clip / norm))
        clipped |= scale < 1
        own, meme = ({k: w[k] - LR * scale * d[k] for k in w} for w, d in zip((own, meme), g, strict=True))
    return own, meme, clipped


@pytest.mark.parametrize(
    ("method", "clips"),
    [(FML(), False), (FML(alpha=0.9, beta=0.2), False), (FML(alpha=0.0, beta=0.0), False), (FML(clip=0.5), True)],
    ids=repr,
)
def test_client_half(method: FML, clips: bool) -> None:
    plan, rng = plan_of(method, CLIENTS, batch=BATCH, lr=LR, epochs=EPOCHS), torch.Generator()
    local = bench(plan, 0)
    rng.set_state(local.rng.get_state())
    update = method.local_update(OwnModel(floats(drawn(1))), Shared(floats(drawn(2))), local)
    own, meme, clipped = train(0, drawn(1), drawn(2), method, rng)
    assert clipped == clips
    close(dict(update.me.w), own)
    close(update.model.state_dict(), own)
    close(dict(update.up.w), meme)


def test_server_half() -> None:
    """Every meme counts the same, whatever its client's samples; without replies nothing changes."""
    method = FML()
    central = ServerBench(plan_of(method, CLIENTS), 1)
    first = method.server_init(central)
    close(dict(first.w), START)
    ups = [drawn(3), drawn(4)]
    server = method.aggregate(first, [Reply(c, Shared(floats(ups[c])), SIZES[c]) for c in (0, 1)], central)
    close(dict(server.w), weighted(ups, sizes=[1, 1]))
    assert method.aggregate(first, [], central) is first


def test_beginning_and_use() -> None:
    """The own model is the initial one under another head, the same for all clients; a download does not change it."""
    method = FML()
    plan = plan_of(method, CLIENTS)
    first, other = (method.client_init(bench(plan, c, 0)).w for c in (0, 1))
    assert all(torch.equal(t, other[k]) for k, t in first.items())
    close({k: first[k] for k in (A, B)}, {k: START[k] for k in (A, B)})
    assert (first[V].double() - START[V]).abs().max() > 0.1
    used = method.personalize(OwnModel(floats(drawn(1))), Shared(floats(drawn(2))), bench(plan))
    close(used.state_dict(), drawn(1))
