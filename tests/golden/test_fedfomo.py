"""FedFomo by hand (arXiv 2012.08565; the equations are numbered in the file of the method).

w_n = (L(theta_i) - L(theta_n)) / (||theta_n - theta_i|| + 1e-5), L on samples that are not trained on
theta_i <- theta_i + sum_n w_n+ (theta_n - theta_i), w_n+ = max(w_n, 0) / sum_m max(w_m, 0); none positive: unchanged
P[i, n] <- P[i, n] + w_n, and client i is sent the M models of the largest P[i, .]
"""

from __future__ import annotations

import torch
from byhand import START, A, B, C, V, Weights, close, descend
from tiny import bench, plan_of
from torch import Tensor
from torch.testing import assert_close

from headwise.contract.method import Reply
from headwise.engine.client.client_bench import ClientBench
from headwise.engine.server_bench import ServerBench
from headwise.methods.fedfomo import Down, FedFomo, Own, Server, Up
from headwise.params import Params

LR, EPOCHS = 0.2, 2
CLIENTS = [(torch.randn(10, 2, generator=torch.Generator().manual_seed(c)), torch.arange(10) % 3) for c in range(5)]


def drawn(seed: int) -> Weights:
    rng = torch.Generator().manual_seed(seed)
    return {k: torch.randn(t.shape, generator=rng).double() for k, t in START.items()}


def floats(w: Weights) -> Params:
    return Params({k: t.float() for k, t in w.items()})


def local_of(method: FedFomo) -> ClientBench:
    return bench(plan_of(method, CLIENTS, lr=LR, epochs=EPOCHS), 0)


def loss(w: Weights, x: Tensor, y: Tensor) -> Tensor:
    f = (x.double() @ w[A].T + w[B]).clamp(min=0)
    z = f @ w[V].T + w[C]
    return torch.stack([z[i].exp().sum().log() - z[i, k] for i, k in enumerate(y.tolist())]).mean()


def weight(theta: Weights, other: Weights, x: Tensor, y: Tensor) -> Tensor:
    distance = sum(((other[k] - theta[k]) ** 2).sum() for k in theta) ** 0.5
    return (loss(theta, x, y) - loss(other, x, y)) / (distance + 1e-5)


def test_client_half() -> None:
    """Two of the four models are better than one's own; the mixture of these two is trained on the other 80 %."""
    method, mine = FedFomo(), drawn(7)
    others = {n: drawn(n) for n in (1, 2, 3, 4)}
    local = local_of(method)
    rest, (x, y) = local.hold_out(0.2)
    assert (rest.n, len(y)) == (8, 2)
    update = method.local_update(Own(floats(mine)), Down({n: floats(w) for n, w in others.items()}), local)
    w = {n: weight(mine, other, x, y) for n, other in others.items()}
    positive = {n: v for n, v in w.items() if v > 0}
    assert len(positive) == 2
    total = sum(positive.values())
    mixed = {k: t + sum(v / total * (others[n][k] - t) for n, v in positive.items()) for k, t in mine.items()}
    held = {tuple(row.tolist()) for row in x}
    left = [i for i, row in enumerate(CLIENTS[0][0]) if tuple(row.tolist()) not in held]
    trained = descend(mixed, CLIENTS[0][0][left], CLIENTS[0][1][left], LR, EPOCHS)
    close(dict(update.up.w), trained)
    close(dict(update.me.w), trained)
    assert update.up.clients.tolist() == [1, 2, 3, 4]
    assert_close(update.up.weights.double(), torch.stack(list(w.values())), atol=2e-6, rtol=1e-5)


def test_without_a_better_model_the_own_one_is_trained_on() -> None:
    method = FedFomo()
    x, y = local_of(method).hold_out(0.2)[1]
    best = descend(START, x, y, 0.5, 200)  # nobody's model is better on these samples
    update = method.local_update(Own(floats(best)), Down({1: floats(drawn(1)), 2: floats(drawn(2))}), local_of(method))
    assert (update.up.weights < 0).all()
    alone = method.local_update(Own(floats(best)), Down({}), local_of(method))
    close(dict(update.up.w), {k: t.double() for k, t in alone.up.w.items()})
    close(method.personalize(Own(floats(best)), Down({}), local_of(method)).state_dict(), best)


def test_affinities_add_up() -> None:
    """P starts as the identity; only the rows of the round's clients change, where they were sent a model."""
    method = FedFomo()
    central = ServerBench(plan_of(method, CLIENTS), 1)
    first = method.server_init(central)
    assert torch.equal(first.P, torch.eye(5))
    up = Up(floats(drawn(0)), torch.tensor([1, 4], dtype=torch.int32), torch.tensor([0.5, -2.0]))
    server = method.aggregate(first, [Reply(3, up, 10)], central)
    server = method.aggregate(server, [Reply(3, up, 10)], central)
    assert server.P[3].tolist() == [0, 1, 0, 1, -4]
    assert torch.equal(server.P[[0, 1, 2, 4]], torch.eye(5)[[0, 1, 2, 4]])
    assert list(server.models) == [3]


def test_the_best_models_are_sent() -> None:
    """The M largest affinities among the others that have trained; equal ones are drawn."""
    method = FedFomo(M=2)
    models = {j: floats(drawn(j)) for j in (0, 1, 2, 4)}
    P = torch.tensor([[9.0, -1.0, 2.0, 5.0, 1.0]]).repeat(5, 1)
    P[1] = 0

    def sent(client: int, t: int) -> list[int]:
        return list(method.broadcast(Server(models, P), client, ServerBench(plan_of(method, CLIENTS), t)).models)

    assert sent(0, 1) == [2, 4] and sent(4, 1) == [0, 2]
    assert {j for t in range(20) for j in sent(1, t)} == {0, 2, 4}
