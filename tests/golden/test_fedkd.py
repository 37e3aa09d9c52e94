"""FedKD by hand (Nature Communications 2022, arXiv 2108.13323, Algorithm 1): a client's round, and the compression.

Client: with s = CE + CE_g, the mentor descends L = CE + (KL(p_g || p) + MSE(f, W f_g)) / s along dL/d(mentor), the
mentee L_g = CE_g + (KL(p || p_g) + MSE) / s along dL_g/d(mentee), and W, which stands in both, along d(L + L_g)/dW.
s is part of what is differentiated. Three separate gradients, by autograd on plain tensors.

Compression: the best approximation of M of rank k is M Q Q^T, where Q are the k first eigenvectors of M^T M, and its
energy is the sum of their eigenvalues. Each round's mean change is compressed, and the mentee is the common start plus
the sum of what was left of all rounds.
"""

from __future__ import annotations

import pytest
import torch
from byhand import START, Weights, close, drawn
from tiny import bench, floats, model_of, plan_of
from torch import Tensor, nn
from torch.testing import assert_close

from headwise.contract.method import Reply
from headwise.engine.server_bench import ServerBench
from headwise.methods.fedkd import Change, Down, FedKD, Own, Server
from headwise.models.split import SplitModel
from headwise.params import Params
from headwise.records import nbytes

BATCH, LR, EPOCHS = 5, 0.2, 2
CLIENTS = [(torch.randn(n, 2, generator=torch.Generator().manual_seed(n)), torch.arange(n) % 3) for n in (10, 6)]
EXACT = FedKD(energy_start=1.0, energy_end=1.0)


def raw(w: Weights) -> Params:
    return Params({f"whole/{k}": t.float() for k, t in w.items()})


def forward(w: Weights, x: Tensor) -> tuple[Tensor, Tensor]:
    f = (x.double() @ w["body.0.weight"].T + w["body.0.bias"]).clamp(min=0)
    return f, f @ w["head.weight"].T + w["head.bias"]


def losses(own: Weights, mentee: Weights, W: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Of the mentor and of the mentee."""
    (f, z), (f_g, z_g) = forward(own, x), forward(mentee, x)
    p, q = z - z.exp().sum(1, keepdim=True).log(), z_g - z_g.exp().sum(1, keepdim=True).log()
    rows = torch.arange(len(y))
    ce, ce_g, mse = -p[rows, y].mean(), -q[rows, y].mean(), ((f - f_g @ W.T) ** 2).mean()
    mine = ce + ((q.exp() * (q - p)).sum() / len(y) + mse) / (ce + ce_g)
    theirs = ce_g + ((p.exp() * (p - q)).sum() / len(y) + mse) / (ce + ce_g)
    return mine, theirs


def wide() -> SplitModel:
    """A mentor with four features, where the mentee of `tiny` has two."""
    own = SplitModel(nn.Sequential(nn.Linear(2, 4), nn.ReLU()), nn.Linear(4, 3))
    return own.eval()


@pytest.mark.parametrize("total", [True, False])
@pytest.mark.parametrize("clip", [10.0, 0.5])
def test_client_half(clip: float, total: bool) -> None:
    """From the common start plus all changes, or from its last download plus the last round's."""
    method = FedKD(energy_start=1.0, energy_end=1.0, clip=clip)
    plan = plan_of(method, CLIENTS, model=wide(), batch=BATCH, lr=LR, epochs=EPOCHS)
    object.__setattr__(plan, "server_model", model_of())
    local, rng, (x, y) = bench(plan, 0), torch.Generator(), CLIENTS[0]
    rng.set_state(local.rng.get_state())
    own, change = drawn(1, like=dict(plan.models[0].state_dict())), drawn(2)
    W = drawn(3, like={"W": torch.zeros(4, 2)})["W"]
    known = drawn(4)
    update = method.local_update(Own(floats(own), W.float(), floats(known)), Down(raw(change), total), local)
    start = {k: (START if total else known)[k] + change[k] for k in START}
    mentee, clipped = start, False
    for i in (i for _ in range(EPOCHS) for i in torch.randperm(len(y), generator=rng).split(BATCH)):
        groups = [list(own.values()), list(mentee.values()), [W]]
        for t in (t for group in groups for t in group):
            t.requires_grad_()
        mine, theirs = losses(own, mentee, W, x[i], y[i])
        of = zip((mine, theirs, mine + theirs), groups, strict=True)
        slopes = [torch.autograd.grad(v, g, retain_graph=True) for v, g in of]
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
    close(dict(update.me.w_g), start)
    close(dict(update.up.w), {f"whole/{k}": mentee[k] - start[k] for k in START})  # factors of so small ones are larger


@pytest.mark.parametrize(("t", "share"), [(0, 0.9), (5, 0.8), (10, 0.7)])
def test_compression(t: int, share: float) -> None:
    """T(t) = 0.9 + (0.7 - 0.9) t / 10 of the energy is kept, at the lowest rank that does; vectors stay as they are."""
    body = nn.Sequential(nn.Conv2d(2, 12, 3), nn.Flatten(), nn.Linear(12, 20), nn.ReLU())
    model, method = SplitModel(body, nn.Linear(20, 3)), FedKD(energy_start=0.9, energy_end=0.7)
    central = ServerBench(plan_of(method, CLIENTS, model=model, rounds=10), t)
    change = drawn(4, like=dict(model.state_dict()))
    for k, scale in (("body.0.weight", 18), ("body.2.weight", 12)):  # singular values that fall
        flat = change[k].flatten(1)
        change[k] = (flat * torch.logspace(0, -2, scale).double()).view_as(change[k])
    server = method.aggregate(
        method.server_init(central), [Reply(c, Change(raw(change)), 5) for c in (0, 1)], central
    ).last
    numbers = 0
    for k, M in ((k, t.flatten(1)) for k, t in change.items() if t.ndim > 1):
        values, Q = (t.flip(-1) for t in torch.linalg.eigh(M.T @ M))
        kept = values.cumsum(0) / values.sum()
        rank = next(r for r in range(1, len(values) + 1) if kept[r - 1] >= share)
        if rank * (sum(M.shape) + 1) >= M.numel():
            assert torch.equal(server[f"whole/{k}"], change[k].float())
            numbers += M.numel()
            continue
        assert server[f"sigma/{k}"].shape == (rank,)
        assert_close(restored(server, k).double(), M @ Q[:, :rank] @ Q[:, :rank].T, atol=1e-5, rtol=0)
        numbers += rank * (sum(M.shape) + 1)
    assert {"U/body.0.weight", "U/body.2.weight"} <= set(server)
    vectors = 12 + 20 + 3
    assert nbytes(Change(server)) == 4 * (numbers + vectors)


def restored(change: Params, name: str) -> Tensor:
    if f"whole/{name}" in change:
        return change[f"whole/{name}"]
    return change[f"U/{name}"] * change[f"sigma/{name}"] @ change[f"V/{name}"]


def test_server_half() -> None:
    """The change since the start grows by the plain mean of what the clients changed."""
    central = ServerBench(plan_of(EXACT, CLIENTS), 1)
    first = EXACT.server_init(central)
    assert all(not restored(first.total, k).any() for k in START)
    old, ups = drawn(5), [drawn(6), drawn(7)]
    server = Server(raw(old), torch.tensor([False, False]), raw(old))
    server = EXACT.aggregate(server, [Reply(c, Change(raw(ups[c])), (10, 6)[c]) for c in (0, 1)], central)
    mean = {k: (ups[0][k] + ups[1][k]) / 2 for k in START}
    close({k: restored(server.last, k) for k in START}, mean)
    close({k: restored(server.total, k) for k in START}, {k: old[k] + mean[k] for k in START})
    assert EXACT.aggregate(server, [], central) is server


def test_who_took_part_is_sent_the_last_change_and_others_all() -> None:
    central = ServerBench(plan_of(EXACT, CLIENTS), 2)
    first = EXACT.server_init(central)
    assert [EXACT.broadcast(first, c, central).total for c in (0, 1)] == [True, True]
    server = EXACT.aggregate(first, [Reply(1, Change(raw(drawn(6))), 6)], central)
    down = [EXACT.broadcast(server, c, central) for c in (0, 1)]
    assert [d.total for d in down] == [True, False]
    assert down[0].w is server.total and down[1].w is server.last


def test_a_late_small_change_is_not_lost() -> None:
    """A large change in one direction, then one of a hundredth of its size in another: of both together 95 % of the
    energy is the first alone, but each round's change is compressed by itself."""
    method, model = FedKD(), SplitModel(nn.Sequential(nn.Linear(8, 12), nn.ReLU()), nn.Linear(12, 3))
    central = ServerBench(plan_of(method, CLIENTS, model=model, rounds=10), 1)
    nothing = {k: torch.zeros_like(t).double() for k, t in model.state_dict().items()}
    large, small = (torch.zeros(12, 8).double() for _ in range(2))
    large[3, 2], small[5, 6] = 1.0, 0.01
    server = method.server_init(central)
    for change in (large, small):
        up = raw({**nothing, "body.0.weight": change})
        server = method.aggregate(server, [Reply(c, Change(up), 5) for c in (0, 1)], central)
    assert_close(restored(server.total, "body.0.weight").double(), large + small, atol=1e-6, rtol=0)
    assert nbytes(Change(server.total)) < nbytes(Change(up))  # of rank two, and sent as factors
