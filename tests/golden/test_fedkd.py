"""FedKD by hand (Nature Communications 2022, arXiv 2108.13323, Algorithm 1): a client's round, and the compression.

Client: with s = CE + CE_g as a weight, the mentor descends CE + KL(p_g || p) / s + MSE(f, W f_g) / s with the mentee
held fixed, the mentee CE_g + KL(p || p_g) / s + MSE / s with the mentor held fixed, and W descends MSE / s: three
separate gradients, by autograd on plain tensors. Compression: the best approximation of M of rank k is M Q Q^T, where Q
are the k first eigenvectors of M^T M, and its energy is the sum of their eigenvalues.
"""

from __future__ import annotations

import pytest
import torch
from byhand import START, Weights, close
from tiny import bench, model_of, plan_of
from torch import Tensor, nn
from torch.testing import assert_close

from headwise.contract.method import Reply
from headwise.engine.server_bench import ServerBench
from headwise.methods.fedkd import Change, FedKD, Own
from headwise.models.split import SplitModel
from headwise.params import Params
from headwise.records import nbytes

BATCH, LR, EPOCHS = 5, 0.2, 2
CLIENTS = [(torch.randn(n, 2, generator=torch.Generator().manual_seed(n)), torch.arange(n) % 3) for n in (10, 6)]
EXACT = FedKD(energy_start=1.0, energy_end=1.0)


def drawn(like: Weights, seed: int) -> Weights:
    rng = torch.Generator().manual_seed(seed)
    return {k: torch.randn(t.shape, generator=rng).double() for k, t in like.items()}


def floats(w: Weights) -> Params:
    return Params({k: t.float() for k, t in w.items()})


def raw(w: Weights) -> Change:
    return Change(Params(), Params(), Params(), floats(w))


def forward(w: Weights, x: Tensor) -> tuple[Tensor, Tensor]:
    f = (x.double() @ w["body.0.weight"].T + w["body.0.bias"]).clamp(min=0)
    return f, f @ w["head.weight"].T + w["head.bias"]


def losses(own: Weights, mentee: Weights, W: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of the mentor, of the mentee, and of W; s is a number."""
    (f, z), (f_g, z_g) = forward(own, x), forward(mentee, x)
    p, q = z - z.exp().sum(1, keepdim=True).log(), z_g - z_g.exp().sum(1, keepdim=True).log()
    rows = torch.arange(len(y))
    ce, ce_g, mse = -p[rows, y].mean(), -q[rows, y].mean(), ((f - f_g @ W.T) ** 2).mean()
    s = (ce + ce_g).item()
    mine = ce + (q.exp() * (q - p)).sum() / len(y) / s + mse / s
    theirs = ce_g + (p.exp() * (p - q)).sum() / len(y) / s + mse / s
    return mine, theirs, mse / s


def wide() -> SplitModel:
    """A mentor with four features, where the mentee of `tiny` has two."""
    own = SplitModel(nn.Sequential(nn.Linear(2, 4), nn.ReLU()), nn.Linear(4, 3))
    return own.eval()


@pytest.mark.parametrize("clip", [10.0, 0.5])
def test_client_half(clip: float) -> None:
    method = FedKD(energy_start=1.0, energy_end=1.0, clip=clip)
    plan = plan_of(method, CLIENTS, model=wide(), batch=BATCH, lr=LR, epochs=EPOCHS)
    object.__setattr__(plan, "server_model", model_of())
    local, rng, (x, y) = bench(plan, 0), torch.Generator(), CLIENTS[0]
    rng.set_state(local.rng.get_state())
    own, change = drawn(dict(plan.models[0].state_dict()), 1), drawn(START, 2)
    W = drawn({"W": torch.zeros(4, 2)}, 3)["W"]
    update = method.local_update(Own(floats(own), W.float()), raw(change), local)
    start = {k: START[k] + change[k] for k in START}  # what the download says: the change since the common start
    mentee, clipped = start, False
    for i in (i for _ in range(EPOCHS) for i in torch.randperm(len(y), generator=rng).split(BATCH)):
        groups = [list(own.values()), list(mentee.values()), [W]]
        for t in (t for group in groups for t in group):
            t.requires_grad_()
        found = losses(own, mentee, W, x[i], y[i])
        slopes = [torch.autograd.grad(v, g, retain_graph=True) for v, g in zip(found, groups, strict=True)]
        norm = sum(float((t**2).sum()) for group in slopes for t in group) ** 0.5
        rate, clipped = LR * min(1.0, clip / norm), clipped or norm > clip
        new = [
            [(t - rate * d).detach() for t, d in zip(*pair, strict=True)] for pair in zip(groups, slopes, strict=True)
        ]
        own, mentee, W = dict(zip(own, new[0], strict=True)), dict(zip(mentee, new[1], strict=True)), new[2][0]
    assert clipped == (clip < 1)
    close(dict(update.me.w), own)
    close(update.model.state_dict(), own)
    assert_close(update.me.W.double(), W, atol=2e-6, rtol=0)
    close(dict(update.up.rest), {k: mentee[k] - start[k] for k in START})
    assert not update.up.U  # factors of matrices so small are larger than they


@pytest.mark.parametrize(("t", "share"), [(0, 0.9), (5, 0.8), (10, 0.7)])
def test_compression(t: int, share: float) -> None:
    """T(t) = 0.9 + (0.7 - 0.9) t / 10 of the energy is kept, at the lowest rank that does; vectors stay as they are."""
    body = nn.Sequential(nn.Conv2d(2, 12, 3), nn.Flatten(), nn.Linear(12, 20), nn.ReLU())
    model, method = SplitModel(body, nn.Linear(20, 3)), FedKD(energy_start=0.9, energy_end=0.7)
    central = ServerBench(plan_of(method, CLIENTS, model=model, rounds=10), t)
    change = drawn(dict(model.state_dict()), 4)
    for k, scale in (("body.0.weight", 18), ("body.2.weight", 12)):  # singular values that fall
        flat = change[k].flatten(1)
        change[k] = (flat * torch.logspace(0, -2, scale).double()).view_as(change[k])
    server = method.aggregate(method.server_init(central), [Reply(c, raw(change), 5) for c in (0, 1)], central)
    numbers = 0
    for k, M in ((k, t.flatten(1)) for k, t in change.items() if t.ndim > 1):
        values, Q = (t.flip(-1) for t in torch.linalg.eigh(M.T @ M))
        kept = values.cumsum(0) / values.sum()
        rank = next(r for r in range(1, len(values) + 1) if kept[r - 1] >= share)
        if rank * (sum(M.shape) + 1) >= M.numel():
            assert torch.equal(server.rest[k], change[k].float())
            numbers += M.numel()
            continue
        assert server.sigma[k].shape == (rank,)
        found = server.U[k].double() * server.sigma[k] @ server.V[k].double()
        assert_close(found, M @ Q[:, :rank] @ Q[:, :rank].T, atol=1e-5, rtol=0)
        numbers += rank * (sum(M.shape) + 1)
    assert {"body.0.weight", "body.2.weight"} <= set(server.U)
    vectors = 12 + 20 + 3
    assert nbytes(server) == 4 * (numbers + vectors)


def test_server_half() -> None:
    """The change since the start grows by the plain mean of what the clients changed."""
    central = ServerBench(plan_of(EXACT, CLIENTS), 1)
    first = EXACT.server_init(central)
    assert all(not t.any() for t in first.rest.values()) and not any(t.any() for t in first.sigma.values())
    old, ups = drawn(START, 5), [drawn(START, 6), drawn(START, 7)]
    server = EXACT.aggregate(raw(old), [Reply(c, raw(ups[c]), (10, 6)[c]) for c in (0, 1)], central)
    close(dict(server.rest), {k: old[k] + (ups[0][k] + ups[1][k]) / 2 for k in START})
    assert EXACT.aggregate(server, [], central) is server
