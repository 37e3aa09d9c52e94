"""CD2-pFed by hand (arXiv 2204.03880; the equation is numbered in the file of the method).

With half of the channels private, the second of the two hidden units is: row 2 of A, entry 2 of b, column 2 of V. The
shared prediction y_s has these set to zero, the private one y_p all others, c included. The loss is

    CE + lam / 2 (KL(y_p || y_s) + KL(y_s || y_p)),   KL(p || q) = 1/n sum_i sum_k p_k (log p_k - log q_k)

with the first of each pair constant; its gradients are those of autograd on these plain tensors.
"""

from __future__ import annotations

import pytest
import torch
from byhand import BODY, HEAD, START, A, B, C, V, Weights, close, drawn
from tiny import bench, floats, plan_of, run
from torch import Tensor

from headwise.contract.averaging import Shared
from headwise.contract.method import Reply
from headwise.engine.server_bench import ServerBench
from headwise.methods.cd2_pfed import CD2PFed, Own

LR, EPOCHS, SIZES = 0.3, 2, [5, 4]
CLIENTS = [(torch.randn(n, 2, generator=torch.Generator().manual_seed(n)), torch.arange(n) % 3) for n in SIZES]
KEEP: Weights = {
    A: torch.tensor([[1.0, 1.0], [0.0, 0.0]]),
    B: torch.tensor([1.0, 0.0]),
    V: torch.tensor([[1.0, 0.0]] * 3),
    C: torch.ones(3),
}


def shared(w: Weights) -> Weights:
    return {A: w[A][:1], B: w[B][:1], V: w[V][:, :1], C: w[C]}


def private(w: Weights) -> Weights:
    return {A: w[A][1:], B: w[B][1:], V: w[V][:, 1:]}


def logs(w: Weights, x: Tensor) -> Tensor:
    z = (x.double() @ w[A].T + w[B]).clamp(min=0) @ w[V].T + w[C]
    return z - z.exp().sum(1, keepdim=True).log()


def step(w: Weights, x: Tensor, y: Tensor, lam: float, keep: Weights = KEEP) -> Weights:
    q = {k: t.clone().requires_grad_() for k, t in w.items()}
    s = logs({k: t * keep[k] for k, t in q.items()}, x)
    p = logs({k: t * (1 - keep[k]) for k, t in q.items()}, x)
    to_p = (p.detach().exp() * (p.detach() - s)).sum(1).mean()
    to_s = (s.detach().exp() * (s.detach() - p)).sum(1).mean()
    loss = -logs(q, x)[torch.arange(len(y)), y].mean() + lam / 2 * (to_p + to_s)
    slopes = torch.autograd.grad(loss, list(q.values()))
    return {k: w[k] - LR * g for k, g in zip(q, slopes, strict=True)}


@pytest.mark.parametrize("lam", [0.0, 1.0, 3.0])
def test_client_half(lam: float) -> None:
    """What was sent replaces the shared channels; all of it is trained; only the shared channels are sent back."""
    method, mine, world = CD2PFed(growth=0.0, lam=lam), drawn(1), drawn(2)
    local = bench(plan_of(method, CLIENTS, lr=LR, epochs=EPOCHS), 0)
    me, down = Own(floats(shared(mine)), floats(private(mine))), Shared(floats(shared(world)))
    w = {k: world[k] * KEEP[k] + mine[k] * (1 - KEEP[k]) for k in BODY + HEAD}
    close(method.personalize(me, down, local).state_dict(), w)
    update = method.local_update(me, down, local)
    for _ in range(EPOCHS):
        w = step(w, *CLIENTS[0], lam)
    close(update.model.state_dict(), w)
    close(dict(update.up.w), shared(w))
    close(dict(update.me.shared), shared(w))
    close(dict(update.me.private), private(w))


def test_server_half() -> None:
    """The mean of the shared channels, weighted by n; nobody's answer, nothing new."""
    method, w = CD2PFed(), [drawn(1), drawn(2)]
    central = ServerBench(plan_of(method, CLIENTS), 1)
    first = method.server_init(central)
    close(dict(first.w), START)
    replies = [Reply(c, Shared(floats(shared(w[c]))), SIZES[c]) for c in (0, 1)]
    server = method.aggregate(first, replies, central)
    close(dict(server.w), {k: (5 * shared(w[0])[k] + 4 * shared(w[1])[k]) / 9 for k in START})
    assert method.aggregate(server, [], central) is server
    assert method.broadcast(server, 1, central).w is server.w


def test_the_private_share_grows() -> None:
    """p = 1 within all of two rounds: one of two units is private in round 1, both in round 2; c is always shared.

    In round 2 the unit that turns private starts from the mean of round 1, and y_s is that of c alone.
    """
    method = CD2PFed(p=1.0, growth=1.0, lam=0.5)
    own = [step(START, x, y, 0.5) for x, y in CLIENTS]
    world = {k: (5 * own[0][k] + 4 * own[1][k]) / 9 for k in START}
    own = [{k: world[k] * KEEP[k] + w[k] * (1 - KEEP[k]) for k in START} for w in own]
    none = {k: torch.ones_like(t) if k == C else torch.zeros_like(t) for k, t in START.items()}
    own = [step(w, x, y, 0.5, none) for w, (x, y) in zip(own, CLIENTS, strict=True)]
    end = run(plan_of(method, CLIENTS, rounds=2, lr=LR))
    close({C: end.server.w[C]}, {C: (5 * own[0][C] + 4 * own[1][C]) / 9})
    assert {k: t.numel() for k, t in end.server.w.items()} == {A: 0, B: 0, V: 0, C: 3}
    for c in (0, 1):
        close(dict(end.states[c].me.private), {k: own[c][k] for k in (A, B, V)})
    assert [row["bytes_up"] for row in end.rows] == [2 * 4 * 9, 2 * 4 * 3]
    assert [row["bytes_down"] for row in end.rows] == [2 * 4 * 15, 2 * 4 * 9]
