"""FD by hand (arXiv 1811.11479, Algorithm 1), over two rounds.

Cross-entropy to a soft target q is -sum_k q_k log p_k, whose derivative with respect to the logits is p - q, since q
sums to one: with lam it adds lam (p - q) / n to dL/dz for the samples whose class has a target, to the others nothing.
"""

from __future__ import annotations

import torch
from byhand import CLIENTS, START, A, B, C, V, Weights, close, features
from tiny import bench, plan_of, run
from torch import Tensor
from torch.testing import assert_close

from headwise.contract.method import Reply
from headwise.engine.server_bench import ServerBench
from headwise.methods.fd import FD, Logits

LR, EPOCHS, LAM = 0.5, 2, 0.6
Table = dict[int, Tensor]


def softmax(z: Tensor) -> Tensor:
    return z.exp() / z.exp().sum(-1, keepdim=True)


def train(w: Weights, x: Tensor, y: Tensor, table: Table) -> tuple[Weights, Table]:
    """The model after E full batches, and the mean of the logits that were seen on the way, for each class."""
    x, n, seen = x.double(), len(y), list[Tensor]()
    for _ in range(EPOCHS):
        f = features(w, x)
        z = f @ w[V].T + w[C]
        seen.append(z)
        p, dz = softmax(z), softmax(z) - torch.eye(3).double()[y]
        for i, s in enumerate(y.tolist()):
            if s in table:
                dz[i] += LAM * (p[i] - softmax(table[s]))
        dz = dz / n
        da = (dz @ w[V]) * (f > 0)
        g = {A: da.T @ x, B: da.sum(0), V: dz.T @ f, C: dz.sum(0)}
        w = {k: t - LR * g[k] for k, t in w.items()}
    means = {s: torch.cat([z[y == s] for z in seen]).mean(0) for s in sorted(set(y.tolist()))}
    return w, means


def test_two_rounds() -> None:
    """Classes 1 and 2 are held by clients 1 and 2, so that each is taught the other's logits; client 0 alone holds
    class 0 and is taught nothing."""
    tables, models, sent = [Table()] * 3, [START] * 3, list[Table]()
    for _ in range(2):
        trained = [train(w, *client, t) for w, client, t in zip(models, CLIENTS, tables, strict=True)]
        models, sent = [w for w, _ in trained], [means for _, means in trained]
        tables = [Table(), sent[2], sent[1]]
    end = run(plan_of(FD(lam=LAM), rounds=2, epochs=EPOCHS))
    for c, w in enumerate(models):
        close(dict(end.states[c].me.w), w)
    for c, means in enumerate(sent):
        assert end.server.known[c].tolist() == [s in means for s in range(3)]
        for s, z in means.items():
            assert_close(end.server.means[c, s].double(), z, atol=5e-6, rtol=0)
    assert [row["bytes_up"] for row in end.rows] == [row["bytes_down"] for row in end.rows] == [4 * 5 * (3 + 1)] * 2


def test_leave_one_out() -> None:
    """The mean over the other clients that have sent logits of the label, the last ones of each."""
    clients = [(torch.ones(2, 2), torch.tensor([0, 1]))] * 3 + [(torch.ones(1, 2), torch.tensor([2]))]
    method = FD()
    plan = plan_of(method, clients)
    central = ServerBench(plan, 1)

    def up(*rows: float) -> Logits:
        return Logits(torch.tensor([0, 1]).int(), torch.tensor([[r, 0.0, -r] for r in rows]))

    server = method.server_init(central)
    assert method.broadcast(server, 0, central).labels.tolist() == [-1, -1]
    server = method.aggregate(server, [Reply(0, up(1, 2), 2), Reply(1, up(3, 5), 2)], central)
    server = method.aggregate(server, [Reply(1, up(4, 6), 2), Reply(3, Logits(torch.tensor([2]), torch.ones(1, 3)), 1)],
                              central)  # fmt: skip
    firsts = {c: method.broadcast(server, c, central).means[:, 0].tolist() for c in range(4)}
    assert firsts == {0: [4, 6], 1: [1, 2], 2: [2.5, 4], 3: [0]}
    assert [method.broadcast(server, c, central).labels.tolist() for c in (2, 3)] == [[0, 1], [-1]]


def test_a_class_without_a_sample_in_any_batch_is_not_sent() -> None:
    """Batches of two and the odd one dropped: of samples [2, 1, 2], the label 1 is dropped in some rounds."""
    plan, seen = plan_of(FD(), batch=2, drop_last=True), list[list[int]]()
    method = FD()
    for t in range(1, 12):
        local = bench(plan, 2, t)
        nothing = Logits(torch.tensor([-1, -1]).int(), torch.zeros(2, 3))
        seen.append(method.local_update(method.client_init(local), nothing, local).up.labels.tolist())
    assert {tuple(labels) for labels in seen} == {(1, 2), (-1, 2)}
