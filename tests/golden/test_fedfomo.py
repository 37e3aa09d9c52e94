"""FedFomo by hand (arXiv 2012.08565; the equations are numbered in the file of the method).

With theta_i^old the model from which client i last began to train and theta_n a candidate: one of the models it is
sent, or its own trained model theta_i,

    w_n = (L(theta_i^old) - L(theta_n)) / (||theta_n - theta_i^old|| + 1e-5), L on samples that are not trained on
    theta_i <- theta_i^old + sum_n w_n+ (theta_n - theta_i^old), w_n+ = max(w_n, 0) / sum_m max(w_m, 0)

Where no w_n is positive the sum is empty, and theta_i^old is trained again.
P[i, n] <- P[i, n] + w_n, and client i is sent the M models of the largest P[i, .]
"""

from __future__ import annotations

import torch
from byhand import START, A, B, C, V, Weights, close, descend, drawn
from tiny import bench, floats, plan_of, run
from torch import Tensor
from torch.testing import assert_close

from headwise.contract.method import Reply
from headwise.engine.client.client_bench import ClientBench
from headwise.engine.server_bench import ServerBench
from headwise.methods.fedfomo import Down, FedFomo, Own, Server, Up

LR, EPOCHS = 0.2, 2
CLIENTS = [(torch.randn(10, 2, generator=torch.Generator().manual_seed(c)), torch.arange(10) % 3) for c in range(5)]


def local_of(method: FedFomo) -> ClientBench:
    return bench(plan_of(method, CLIENTS, lr=LR, epochs=EPOCHS), 0)


def loss(w: Weights, x: Tensor, y: Tensor) -> Tensor:
    f = (x.double() @ w[A].T + w[B]).clamp(min=0)
    z = f @ w[V].T + w[C]
    return torch.stack([z[i].exp().sum().log() - z[i, k] for i, k in enumerate(y.tolist())]).mean()


def weight(theta: Weights, other: Weights, x: Tensor, y: Tensor) -> Tensor:
    distance = sum(((other[k] - theta[k]) ** 2).sum() for k in theta) ** 0.5
    return (loss(theta, x, y) - loss(other, x, y)) / (distance + 1e-5)


OLD, MINE = drawn(25), drawn(7)
ME = Own(floats(MINE), floats(OLD))


def trained_on_the_rest(w: Weights, x: Tensor) -> Weights:
    """`w` after the local epochs on all samples but these."""
    held = {tuple(row.tolist()) for row in x}
    left = [i for i, row in enumerate(CLIENTS[0][0]) if tuple(row.tolist()) not in held]
    return descend(w, CLIENTS[0][0][left], CLIENTS[0][1][left], LR, EPOCHS)


def test_client_half() -> None:
    """One's own trained model and two of the four others are better than the old one: the mixture of these three, in
    which the own one has its part, is trained on the other 80 %."""
    method, others = FedFomo(), {n: drawn(n) for n in (1, 2, 3, 4)}
    local = local_of(method)
    rest, (x, y) = local.hold_out(0.2)
    assert (rest.n, len(y)) == (8, 2)
    update = method.local_update(ME, Down({n: floats(w) for n, w in others.items()}), local)
    candidates = {**others, 0: MINE}
    w = {n: weight(OLD, other, x, y) for n, other in candidates.items()}
    positive = {n: v for n, v in w.items() if v > 0}
    assert 0 in positive and len(positive) == 3
    total = sum(positive.values())
    mixed = {k: t + sum(v / total * (candidates[n][k] - t) for n, v in positive.items()) for k, t in OLD.items()}
    trained = trained_on_the_rest(mixed, x)
    close(dict(update.up.w), trained)
    close(dict(update.me.w), trained)
    close(dict(update.me.old), mixed)
    assert update.up.clients.tolist() == [1, 2, 3, 4]
    assert_close(update.up.weights.double(), torch.stack([w[n] for n in others]), atol=2e-6, rtol=1e-5)


def test_what_was_gained_since_the_old_model_is_not_given_away() -> None:
    """A neighbour that is a little better than one's own trained model takes its part, not all: both gained alike."""
    method = FedFomo()
    x, y = local_of(method).hold_out(0.2)[1]
    own, near = descend(OLD, x, y, 0.1, 5), descend(OLD, x, y, 0.1, 6)
    assert loss(near, x, y) < loss(own, x, y) < loss(OLD, x, y)
    update = method.local_update(Own(floats(own), floats(OLD)), Down({1: floats(near)}), local_of(method))
    mine, theirs = weight(OLD, own, x, y), weight(OLD, near, x, y)
    share = mine / (mine + theirs)
    assert 0.4 < share < 0.6
    close(dict(update.me.old), {k: share * own[k] + (1 - share) * near[k] for k in own})


def test_without_a_better_model_the_old_one_is_trained_again() -> None:
    method = FedFomo()
    x, y = local_of(method).hold_out(0.2)[1]
    best = descend(START, x, y, 0.5, 200)  # nobody's model is better on these samples
    me, down = Own(floats(MINE), floats(best)), Down({1: floats(drawn(1)), 2: floats(drawn(2))})
    update = method.local_update(me, down, local_of(method))
    assert (update.up.weights < 0).all() and weight(best, MINE, x, y) < 0
    close(dict(update.me.old), best)
    close(dict(update.up.w), trained_on_the_rest(best, x))
    close(method.personalize(me, down, local_of(method)).state_dict(), MINE)


def test_two_rounds_of_everybody() -> None:
    """In round 1 all begin from the initial model; in round 2 that is the old one, and what both have learned since is
    mixed, one's own trained model among it."""
    method = FedFomo()
    inputs = [torch.randn(20, 2, generator=torch.Generator().manual_seed(c)) for c in (1, 2)]
    clients = [(x, (x > 0).sum(1)) for x in inputs]  # labels that can be learned: training lowers the validation loss
    plan = plan_of(method, clients, rounds=2, lr=LR, epochs=EPOCHS)
    held = [bench(plan, c).hold_out(0.2)[1] for c in (0, 1)]

    def rest(c: int) -> tuple[Tensor, Tensor]:
        x, y = clients[c]
        left = [i for i in range(len(y)) if x[i].tolist() not in held[c][0].tolist()]
        return x[left], y[left]

    first = [descend(START, *rest(c), LR, EPOCHS) for c in (0, 1)]
    end = run(plan)
    for c in (0, 1):
        w = [weight(START, other, *held[c]).clamp(min=0) for other in first]
        assert min(w) > 0
        mixed = {k: sum(v * other[k] for v, other in zip(w, first, strict=True)) / sum(w) for k in START}
        close(dict(end.server.models[c]), descend(mixed, *rest(c), LR, EPOCHS))


def test_at_first_the_old_model_is_the_initial_one() -> None:
    first = FedFomo().client_init(local_of(FedFomo()))
    close(dict(first.w), START)
    close(dict(first.old), START)


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
