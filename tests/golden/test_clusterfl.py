"""ClusterFL by hand (doi 10.1145/3554980; the equations are numbered in the file of the method).

The objective alpha tr(W W^T) - beta tr(F^T W W^T F), with F_ic = 1 / sqrt(n_c) for i in cluster c, is
alpha sum ||w_i||^2 - beta sum_c n_c ||m_c||^2 with the means m_c, and as sum_i ||w_i - m_c||^2 = sum_i ||w_i||^2 -
n_c ||m_c||^2 in each cluster, (alpha - beta) sum ||w_i||^2 + beta sum ||w_i - m_{c(i)}||^2. Its gradient in w_i, the
means held fixed, is decay w_i + pull (w_i - m) for decay = 2 (alpha - beta), pull = 2 beta.
"""

from __future__ import annotations

import pytest
import torch
from byhand import START, Weights, close, drawn, gradient
from tiny import bench, floats, plan_of
from torch.testing import assert_close

from headwise.contract.averaging import Shared
from headwise.contract.method import Reply
from headwise.engine.server_bench import ServerBench
from headwise.methods.clusterfl import ClusterFL, Clusters, OwnModel

LR, EPOCHS, N = 0.2, 3, 6
CLIENTS = [(torch.randn(5, 2, generator=torch.Generator().manual_seed(c)), torch.arange(5) % 3) for c in range(N)]


def average(models: list[Weights]) -> Weights:
    return {k: sum(w[k] for w in models) / len(models) for k in START}


def grouped(groups: list[int]) -> list[Weights]:
    """Models near one of several that are far apart."""
    return [{k: drawn(100 + g)[k] + 0.05 * drawn(i)[k] for k in START} for i, g in enumerate(groups)]


def after(method: ClusterFL, models: dict[int, Weights], server: Clusters | None = None) -> Clusters:
    central = ServerBench(plan_of(method, CLIENTS), 1)
    replies = [Reply(c, Shared(floats(w)), 5) for c, w in models.items()]
    return method.aggregate(server or method.server_init(central), replies, central)


@pytest.mark.parametrize("groups", [[0, 1, 0, 1, 1, 0], [0, 0, 1, 2, 1, 2], [2, 2, 2, 0, 1, 0]])
def test_similar_models_are_one_cluster(groups: list[int]) -> None:
    """As many clusters as there are groups find them, and everybody is sent the plain mean of its own."""
    method, models = ClusterFL(clusters=len(set(groups))), grouped(groups)
    server = after(method, dict(enumerate(models)))
    central = ServerBench(plan_of(method, CLIENTS), 2)
    for i, g in enumerate(groups):
        mean = average([w for w, other in zip(models, groups, strict=True) if other == g])
        close(dict(method.broadcast(server, i, central).w), mean)


def test_what_is_compared_are_directions() -> None:
    """Relation = cosine of w_i - mean: models along one line through the mean are two clusters, however far out."""
    step, middle = drawn(1), drawn(2)
    models = {i: {k: middle[k] + s * step[k] for k in START} for i, s in enumerate((1.0, -0.1, 4.0, -5.0, 0.2, -0.1))}
    server = after(ClusterFL(clusters=2), models)
    assert server.cluster.tolist() == [0, 1, 0, 1, 0, 1]


def test_clients_that_have_not_trained() -> None:
    """Nobody: the initial model. Somebody: the mean of all; clusters are those of the last models."""
    method, models = ClusterFL(clusters=2), grouped([0, 1, 0, 1, 1, 0])
    central = ServerBench(plan_of(method, CLIENTS), 1)
    close(dict(method.broadcast(method.server_init(central), 0, central).w), START)
    server = after(method, {4: models[4]})
    close(dict(method.broadcast(server, 4, central).w), models[4])
    server = after(method, {1: models[1], 2: models[2]}, server)
    assert list(server.models) == [1, 2, 4]
    close(dict(method.broadcast(server, 4, central).w), average([models[1], models[4]]))
    close(dict(method.broadcast(server, 0, central).w), average([models[1], models[2], models[4]]))
    again = after(method, {4: models[5]}, server)  # it has changed sides
    close(dict(method.broadcast(again, 4, central).w), average([models[2], models[5]]))


@pytest.mark.parametrize("method", [ClusterFL(), ClusterFL(pull=2.0, decay=0.5), ClusterFL(pull=0.0)], ids=repr)
def test_client_half(method: ClusterFL) -> None:
    """w <- w - lr (dL/dw + pull (w - m) + decay w), E times with all samples, from one's own model."""
    w, centre = drawn(1), drawn(2)
    me, down = OwnModel(floats(w)), Shared(floats(centre))
    local = bench(plan_of(method, CLIENTS, lr=LR, epochs=EPOCHS), 0)
    update = method.local_update(me, down, local)
    close(method.personalize(me, down, local).state_dict(), w)
    for _ in range(EPOCHS):
        g = gradient(w, *CLIENTS[0])
        w = {k: t - LR * (g[k] + method.pull * (t - centre[k]) + method.decay * t) for k, t in w.items()}
    close(dict(update.up.w), w)
    close(dict(update.me.w), w)


def test_objective_of_the_paper() -> None:
    """The identity in the header, in numbers: two clusters of two and one model."""
    W = torch.stack([torch.cat([t.flatten() for t in drawn(i).values()]) for i in range(3)])
    F = torch.tensor([[0.5**0.5, 0], [0.5**0.5, 0], [0, 1]]).double()
    alpha, beta = 0.7, 0.3
    means = torch.stack([W[:2].mean(0), W[:2].mean(0), W[2]])
    theirs = alpha * (W @ W.T).trace() - beta * (F.T @ W @ W.T @ F).trace()
    assert_close(theirs, (alpha - beta) * (W**2).sum() + beta * ((W - means) ** 2).sum(), atol=1e-6, rtol=0)
