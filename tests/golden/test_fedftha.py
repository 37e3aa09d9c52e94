"""One round of FedFTHA by hand (IEEE IoT Journal 2023, Eqs. (5)-(9)), with momentum and several batches in their order.

Momentum m keeps a velocity u <- m u + g, from u = 0 at the beginning of each phase, and steps w <- w - lr u; g is
`byhand.gradient`.
"""

from __future__ import annotations

import pytest
import torch
from byhand import BODY, HEAD, START, Weights, close, drawn, gradient
from tiny import bench, plan_of
from torch import Tensor

from headwise.contract.averaging import Shared
from headwise.contract.method import Reply
from headwise.engine.plan import Plan
from headwise.engine.server_bench import ServerBench
from headwise.methods.fedftha import FedFTHA, OwnHead, Server, Up, _average_by_owners  # pyright: ignore[reportPrivateUsage]
from headwise.params import Params
from headwise.records import pack

BATCH, LR, MOMENTUM, SYNC = 4, 0.2, 0.5, 2
LABELS = [[0, 1, 0, 1, 1, 0, 0, 1, 1], [1, 1, 1, 1, 1, 1], [0, 0, 1], [2, 2, 2, 2, 2]]
"""of four clients; the last one never takes part"""
SIZES = [len(y) for y in LABELS]
CLIENTS = [(torch.randn(len(y), 2, generator=torch.Generator().manual_seed(len(y))), torch.tensor(y)) for y in LABELS]


def plan(method: FedFTHA) -> Plan:
    return plan_of(method, CLIENTS, batch=BATCH, lr=LR, momentum=MOMENTUM, epochs=SYNC)


def floats(w: Weights, names: tuple[str, ...]) -> Params:
    return Params({k: w[k].float() for k in names})


def phase(w: Weights, x: Tensor, y: Tensor, rng: torch.Generator, epochs: int, names: tuple[str, ...]) -> Weights:
    """Momentum SGD on the named tensors; the velocity starts at 0."""
    u = {k: torch.zeros_like(t) for k, t in w.items()}
    for i in (i for _ in range(epochs) for i in torch.randperm(len(y), generator=rng).split(BATCH)):
        g = gradient(w, x[i], y[i])
        u = {k: MOMENTUM * u[k] + g[k] for k in u}
        w = {k: t - LR * u[k] if k in names else t for k, t in w.items()}
    return w


@pytest.mark.parametrize("head_epochs", [0, 1, 3])
def test_client_half(head_epochs: int) -> None:
    """Eq. (6) for tau_sync epochs on both, then Eq. (7) for tau_head epochs on the head alone; then both are sent."""
    method, w = FedFTHA(head_epochs=head_epochs), drawn(1)
    local, rng = bench(plan(method)), torch.Generator()
    rng.set_state(local.rng.get_state())
    update = method.local_update(OwnHead(floats(w, HEAD)), Shared(floats(w, BODY)), local)
    w = phase(w, *CLIENTS[0], rng, SYNC, BODY + HEAD)
    w = phase(w, *CLIENTS[0], rng, head_epochs, HEAD)
    close(dict(update.up.G | update.up.h), w)
    close(dict(update.me.h), {k: w[k] for k in HEAD})
    close(update.model.state_dict(), w)


def test_the_personal_model_is_the_own_head_on_the_global_body() -> None:
    w = drawn(1)
    model = FedFTHA().personalize(OwnHead(floats(w, HEAD)), Shared(floats(w, BODY)), bench(plan(FedFTHA())))
    close(model.state_dict(), w)


def reply(c: int, seed: int, method: FedFTHA) -> Reply[Up]:
    """What this client would send if its training had ended at `drawn(seed)`."""
    owned = torch.tensor([k in LABELS[c] for k in range(3)]) if method.head_agg == "owner_mean" else None
    h = floats(drawn(seed), HEAD) if method.upload_heads else None
    return Reply(c, Up(floats(drawn(seed), BODY), h, owned), SIZES[c])


def two_rounds(method: FedFTHA) -> tuple[Server, ServerBench]:
    """Clients 0 and 2 take part in round 1, clients 1 and 2 in round 2, client 3 never does."""
    server = method.server_init(ServerBench(plan(method), 0))
    for t, seeds in ((1, {0: 10, 2: 12}), (2, {1: 11, 2: 22})):
        server = method.aggregate(server, [reply(c, s, method) for c, s in seeds.items()], ServerBench(plan(method), t))
    return server, ServerBench(plan(method), 2)


H = [drawn(seed, HEAD) for seed in (10, 11, 22)]
"""the dictionary of heads after these two rounds: of clients 0, 1 and 2, the last that each of them sent"""


@pytest.mark.parametrize("upload_heads", [True, False])
def test_server_half(upload_heads: bool) -> None:
    """Eq. (9) over the round's clients, each counting the same, 6 samples or 3; and the dictionary."""
    server, _ = two_rounds(FedFTHA(upload_heads=upload_heads))
    close(dict(server.G), {k: (drawn(11)[k] + drawn(22)[k]) / 2 for k in BODY})
    assert list(server.heads) == ([0, 1, 2] if upload_heads else [])
    for client, head in server.heads.items():
        close(dict(head), H[client])


def global_head(method: FedFTHA) -> Weights:
    server, central = two_rounds(method)
    model = method.global_model(server, central)
    assert model is not None
    close(dict(model.params("body")), {k: (drawn(11)[k] + drawn(22)[k]) / 2 for k in BODY})
    return dict(model.params("head"))


def test_mean() -> None:
    """Eq. (8) over the three that were seen; as printed, N = 4 and client 3 still has the initial head."""
    total = {k: H[0][k] + H[1][k] + H[2][k] for k in HEAD}
    close(global_head(FedFTHA()), {k: total[k] / 3 for k in HEAD})
    close(global_head(FedFTHA(include_unseen=True)), {k: (total[k] + START[k]) / 4 for k in HEAD})


def test_n_mean() -> None:
    """Weights 9, 6 and 3 of 18; the unseen one, whose number nobody knows, counts like the average client: 6 of 24."""
    total = {k: 9 * H[0][k] + 6 * H[1][k] + 3 * H[2][k] for k in HEAD}
    close(global_head(FedFTHA(head_agg="n_mean")), {k: total[k] / 18 for k in HEAD})
    unseen = FedFTHA(head_agg="n_mean", include_unseen=True)
    close(global_head(unseen), {k: (total[k] + 6 * START[k]) / 24 for k in HEAD})


def test_owner_mean() -> None:
    """Class 0 is of clients 0 and 2, class 1 of all three; class 2 is nobody's that was seen: the mean of Eq. (8)."""
    for unseen in (False, True):
        plain = {k: (H[0][k] + H[1][k] + H[2][k] + unseen * START[k]) / (3 + unseen) for k in HEAD}
        rows = {
            k: [(H[0][k][0] + H[2][k][0]) / 2, (H[0][k][1] + H[1][k][1] + H[2][k][1]) / 3, plain[k][2]] for k in HEAD
        }
        found = global_head(FedFTHA(head_agg="owner_mean", include_unseen=unseen))
        close(found, {k: torch.stack(rows[k]) for k in HEAD})


def test_owner_mean_of_a_head_of_two_layers() -> None:
    """Only the last layer has a row for each class: the one before it is the plain mean of Eq. (8)."""
    names = ("head.0.weight", "head.2.weight")
    heads = [Params({k: torch.full((3, 2), 10.0 * c + i) for i, k in enumerate(names)}) for c in range(3)]
    owned = torch.tensor([[True, True, False], [False, True, False], [False, False, False]])
    plain = Params({k: torch.stack([h[k] for h in heads]).mean(0) for k in names})
    first, last = _average_by_owners(plain, heads, owned).values()
    assert first.tolist() == [[10.0, 10.0]] * 3
    assert last.tolist() == [[1.0, 1.0], [6.0, 6.0], [11.0, 11.0]]


def test_owners_are_told_by_the_training_samples() -> None:
    method, w = FedFTHA(head_agg="owner_mean", head_epochs=0), drawn(1)
    up = method.local_update(OwnHead(floats(w, HEAD)), Shared(floats(w, BODY)), bench(plan(method), 2)).up
    assert up.owned is not None and up.owned.tolist() == [True, True, False]


@pytest.mark.parametrize("head_agg", ["mean", "owner_mean", "n_mean"])
def test_before_anybody_uploaded_the_global_model_is_the_initial_one(head_agg: str) -> None:
    method = FedFTHA(head_agg=head_agg)
    central = ServerBench(plan(method), 0)
    model = method.global_model(method.server_init(central), central)
    assert model is not None
    close(model.state_dict(), START)


def test_fedft_alone() -> None:
    """Without FedHA no head is sent and there is no global model; the client trains as before."""
    method, w = FedFTHA(upload_heads=False), drawn(1)
    alone, both = (
        m.local_update(OwnHead(floats(w, HEAD)), Shared(floats(w, BODY)), bench(plan(m))) for m in (method, FedFTHA())
    )
    assert set(pack(alone.up).tensors) == {f"G/{k}" for k in BODY}
    close(alone.model.state_dict(), {k: t.double() for k, t in both.model.state_dict().items()})
    assert method.global_model(*two_rounds(method)) is None
