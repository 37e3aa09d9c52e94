"""One round of FedGMH by hand (doi 10.11959/j.issn.1000-0801.2026005, Eqs. (4)-(11), Algorithms 1 and 2).

The head has L = 9 parameters: six weights, row by row, and three biases. Features are never negative, so a body with
A = I, b = 0 hands them on unchanged, and `byhand.gradient` under it is the gradient of a global head's loss on them.
"""

from __future__ import annotations

import math

import pytest
import torch
from byhand import BODY, HEAD, START, A, B, Weights, close, drawn, features, gradient
from tiny import bench, floats, plan_of
from torch.testing import assert_close

from headwise.contract.benches import ClassMeans
from headwise.contract.method import Reply
from headwise.engine.plan import Plan
from headwise.engine.server_bench import ServerBench
from headwise.methods.fedgmh import ONE, FedGMH, Heads, Own
from headwise.params import Params

BATCH, LR, EPOCHS = 4, 0.2, 2
LABELS = [[2, 0, 2, 2, 0, 2, 2, 2], [1, 1, 1], [1, 2, 0, 1]]
INPUTS = [torch.randn(len(y), 2, generator=torch.Generator().manual_seed(len(y))) for y in LABELS]
PROTOS = [([0, 2], [[0.5, 1.0], [2.0, 0.25]]), ([1], [[1.0, 1.5]]), ([0, 1, 2], [[0.75, 0.0], [0.25, 2.0], [1.5, 1.0]])]
"""what three clients send: labels and class means"""
MASK = {"head.weight": torch.tensor([[1, 0], [0, 1], [1, 1]]).bool(), "head.bias": torch.tensor([0, 1, 0]).bool()}


def plan(method: FedGMH, labels: list[list[int]] = LABELS) -> Plan:
    clients = [(x[: len(y)], torch.tensor(y)) for x, y in zip(INPUTS, labels, strict=True)]
    return plan_of(method, clients, batch=BATCH, lr=LR, epochs=EPOCHS)


PHI, H = drawn(1, BODY), drawn(2, HEAD)
GLOBAL = {s: drawn(10 + s, HEAD) for s in (0, 1, 2)}
"""global heads of the three labels"""


def me(mask: Weights | None = MASK) -> Own:
    return Own(floats(PHI), floats(H), None if mask is None else Params(mask))


def heads(method: FedGMH) -> Heads:
    """The server's, in the middle of a run; a single one is that of label 1."""
    one = method.heads == "one"
    return Heads({ONE: floats(GLOBAL[1])} if one else {s: floats(h) for s, h in GLOBAL.items()})


def merged(method: FedGMH, mask: Weights | None = MASK, *, c: int = 0, labels: list[list[int]] = LABELS) -> Weights:
    """The client's model after its download, before any training."""
    p = plan(method, labels)
    down = method.broadcast(heads(method), c, ServerBench(p, 2))
    return dict(method.personalize(me(mask), down, bench(p, c, 2)).params())


def pick(mask: Weights, yes: Weights, no: Weights) -> Weights:
    return {k: mask[k] * yes[k] + ~mask[k] * no[k] for k in HEAD}


def critical(before: Weights, after: Weights, count: int) -> Weights:
    """Algorithm 1 in plain Python: True at the `count` largest |change x value|, of equal ones at the first."""
    start, end = (torch.cat([w[k].flatten() for k in HEAD]).tolist() for w in (before, after))
    score = [abs((b - a) * b) for a, b in zip(start, end, strict=True)]
    best = sorted(range(9), key=lambda i: (-score[i], i))[:count]
    psi = torch.tensor([i in best for i in range(9)])
    return {"head.weight": psi[:6].view(3, 2), "head.bias": psi[6:]}


def same_mask(found: Params | None, expected: Weights) -> None:
    assert found is not None
    assert {k: t.tolist() for k, t in found.items()} == {k: t.tolist() for k, t in expected.items()}


COMBINED = {k: 0.25 * GLOBAL[0][k] + 0.75 * GLOBAL[2][k] for k in HEAD}
"""the sum in Eq. (9) for client 0, which has two samples of class 0 and six of class 2"""


def test_merge() -> None:
    """Eq. (9): global where psi is true. Without psi, everything is adopted, or kept."""
    assert set(FedGMH().broadcast(heads(FedGMH()), 0, ServerBench(plan(FedGMH()), 2)).heads) == {0, 2}
    close(merged(FedGMH()), {**PHI, **pick(MASK, COMBINED, H)})
    close(merged(FedGMH(), None), {**PHI, **COMBINED})
    close(merged(FedGMH(first="keep"), None), {**PHI, **H})
    close(merged(FedGMH(first="keep")), {**PHI, **pick(MASK, COMBINED, H)})


def test_merge_of_the_variants() -> None:
    """GMH-o: Eq. (9) with one head; GMH-a: Eq. (10); GMH-oa: Eq. (11). The code's GMH-a and -oa replace the head."""
    o, a, oa = (FedGMH(**FedGMH.presets[name]) for name in ("o", "a", "oa"))
    close(merged(o), {**PHI, **pick(MASK, GLOBAL[1], H)})
    close(merged(a), {**PHI, **{k: (H[k] + COMBINED[k]) / 2 for k in HEAD}})
    close(merged(oa), {**PHI, **{k: (H[k] + GLOBAL[1][k]) / 2 for k in HEAD}})
    close(merged(FedGMH(merge="replace")), {**PHI, **COMBINED})
    close(merged(FedGMH(heads="one", merge="replace")), {**PHI, **GLOBAL[1]})
    for method in (a, oa):
        down = method.broadcast(heads(method), 0, ServerBench(plan(method), 2))
        assert method.local_update(me(), down, bench(plan(method), 0, 2)).me.psi is None


def test_labels_come_and_go() -> None:
    """Section 2.3.5, the same record at other data: the shares are those of now; psi and the head stay."""
    then, now, alone = [2, 0, 2, 2, 0, 2, 2, 2], [1, 0, 2, 2, 0, 1, 1, 1], [0] * 5
    close(merged(FedGMH(), labels=[then, *LABELS[1:]]), {**PHI, **pick(MASK, COMBINED, H)})
    mix = {k: 0.5 * GLOBAL[1][k] + 0.25 * GLOBAL[0][k] + 0.25 * GLOBAL[2][k] for k in HEAD}
    close(merged(FedGMH(), labels=[now, *LABELS[1:]]), {**PHI, **pick(MASK, mix, H)})
    close(merged(FedGMH(), labels=[alone, *LABELS[1:]]), {**PHI, **pick(MASK, GLOBAL[0], H)})


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("dead", [False, True])
def test_client_half(beta: float, dead: bool) -> None:
    """Eq. (9), E epochs on the whole model, Eqs. (7), (8), and (4), (5) with the body that came out of it.

    With a dead second feature its three weights never move: their scores are 0, and ties go to the first.
    """
    method, p = FedGMH(beta=beta), plan(FedGMH())
    phi = {A: PHI[A], B: torch.tensor([1.0, -50.0 if dead else 1.0]).double()}
    local, rng, x, y = bench(p, 0, 2), torch.Generator(), INPUTS[0], torch.tensor(LABELS[0])
    rng.set_state(local.rng.get_state())
    down = method.broadcast(heads(method), 0, ServerBench(p, 2))
    update = method.local_update(Own(floats(phi), floats(H), Params(MASK)), down, local)
    before = pick(MASK, COMBINED, H)
    w = {**phi, **before}
    for i in (i for _ in range(EPOCHS) for i in torch.randperm(len(y), generator=rng).split(BATCH)):
        g = gradient(w, x[i], y[i])
        w = {k: t - LR * g[k] for k, t in w.items()}
    close(dict(update.me.phi | update.me.h), w)
    f = features(w, x)
    assert update.up.labels.tolist() == [0, 2]
    assert_close(update.up.means.double(), torch.stack([f[y == 0].sum(0) / 2, f[y == 2].sum(0) / 6]), atol=2e-6, rtol=0)
    same_mask(update.me.psi, critical(before, w, {0.0: 0, 0.5: 4, 0.8: 7, 1.0: 9}[beta]))
    if dead and beta == 0.8:
        assert update.me.psi["head.weight"][:, 1].tolist() == [True, False, False]


def scored(values: list[float]) -> tuple[Params, Params]:
    """Heads before and after training, so that |change x value| of parameter l is values[l]: from 0 to its root."""
    end = torch.tensor(values).sqrt()
    after = Params({"head.weight": end[:6].view(3, 2), "head.bias": end[6:]})
    return after.zeros(), after


def chosen(method: FedGMH, values: list[float]) -> list[int]:
    psi = method._critical(*scored(values))
    return torch.cat([psi[k].flatten() for k in HEAD]).nonzero().flatten().tolist()


def test_mask_has_exactly_the_floor_of_beta_l() -> None:
    """Also with many ties; and where beta L is whole but binary fractions miss it: 0.7 * 5130 = 3591."""
    for beta in (k / 20 for k in range(21)):
        assert chosen(FedGMH(beta=beta), [1.0] * 9) == list(range(math.floor(9 * beta + 1e-9)))
    after = Params({"head.weight": torch.ones(10, 512), "head.bias": torch.ones(10)})
    for tenth in range(11):
        psi = FedGMH(beta=tenth / 10)._critical(after.zeros(), after)
        assert sum(int(t.sum()) for t in psi.values()) == 513 * tenth


SCORES = [9.0, 1.0, 4.0, 4.0, 2.0, 0.0, 16.0, 3.0, 4.0]


def test_options_of_the_code() -> None:
    """Each rule of the public code alone. Weights are 0 to 5, biases 6 to 8; beta L = 4.5."""
    assert chosen(FedGMH(), SCORES) == [0, 2, 3, 6]
    assert chosen(FedGMH(mask="critical_local"), SCORES) == [1, 4, 5, 7, 8]
    assert chosen(FedGMH(scope="tensor"), SCORES) == [0, 2, 3, 6]
    assert chosen(FedGMH(scope="tensor", beta=0.7), SCORES) == [0, 2, 3, 4, 6, 8]
    assert chosen(FedGMH(beta=0.7), SCORES) == [0, 2, 3, 6, 7, 8]
    tiny = [1.0, 1e-11, 0.0, 1e-12, 0.0, 1e-22, 0.0, 0.0, 1.0]
    assert chosen(FedGMH(), tiny) == [0, 1, 3, 8]
    assert chosen(FedGMH(zero_fallback=True, beta=0.23), tiny) == [0, 8]
    assert chosen(FedGMH(zero_fallback=True, beta=0.34), tiny) == [0, 1, 3, 8]
    assert chosen(FedGMH(zero_fallback=True, beta=0.0), tiny) == []
    assert FedGMH(refresh="all").updates_idle() and not FedGMH().updates_idle()
    code = FedGMH(**FedGMH.presets["code"])
    assert chosen(code, tiny) == [2, 4, 5, 6, 7]  # critical are 0, 1, 3 among the weights and 8 of the biases


def test_squared_score() -> None:
    """|change^2 x value| prefers what moved far: 2 x 2 x 1 > 1 x 1 x 3, but |change x value| is 2 < 3."""
    after = {"head.weight": torch.tensor([[1.0, 3.0], [0, 0], [0, 0]]), "head.bias": torch.zeros(3)}
    before = {"head.weight": torch.tensor([[-1.0, 2.0], [0, 0], [0, 0]]), "head.bias": torch.zeros(3)}
    found = {s: FedGMH(score=s, beta=1 / 9)._critical(Params(before), Params(after)) for s in ("product", "squared")}
    assert found["product"]["head.weight"].nonzero().tolist() == [[0, 1]]
    assert found["squared"]["head.weight"].nonzero().tolist() == [[0, 0]]


def test_idle_clients_merge_only_their_head() -> None:
    method, p = FedGMH(refresh="all"), plan(FedGMH())
    kept = method.idle_update(me(), method.broadcast(heads(method), 0, ServerBench(p, 2)), bench(p, 0, 2))
    close(dict(kept.phi | kept.h), {**PHI, **pick(MASK, COMBINED, H)})
    same_mask(kept.psi, MASK)


def head_step(h: Weights, f: list[list[float]], s: list[int]) -> Weights:
    """Eq. (6) with eta_h = 0.5 and the mean cross-entropy of these class means."""
    w = {A: torch.eye(2).double(), B: torch.zeros(2).double(), **h}
    g = gradient(w, torch.tensor(f), torch.tensor(s))
    return {k: t - 0.5 * g[k] for k, t in h.items()}


@pytest.mark.parametrize("server_step", ["per_proto", "mean"])
@pytest.mark.parametrize("kind", ["per_label", "one"])
def test_server_half(kind: str, server_step: str) -> None:
    """Eq. (6): a step on each class mean, clients in order and then labels; or one on the mean loss of each head's."""
    method = FedGMH(heads=kind, server_step=server_step, head_lr=0.5)
    replies = [Reply(c, ClassMeans(torch.tensor(s).int(), torch.tensor(f)), 1) for c, (s, f) in enumerate(PROTOS)]
    found = method.aggregate(heads(method), replies, ServerBench(plan(method), 2)).heads
    every = [(f, s) for labels, means in PROTOS for s, f in zip(labels, means, strict=True)]
    for label, h in ({ONE: GLOBAL[1]} if kind == "one" else GLOBAL).items():
        mine = [(f, s) for f, s in every if label in (ONE, s)]
        if server_step == "mean":
            expected = head_step(h, [f for f, _ in mine], [s for _, s in mine])
        else:
            expected = h
            for f, s in mine:
                expected = head_step(expected, [f], [s])
        close(dict(found[label]), expected)


def test_beginning() -> None:
    """All heads, and all clients, start from the common draw; no client has critical parameters yet."""
    central = ServerBench(plan(FedGMH()), 0)
    assert list(FedGMH(heads="one").server_init(central).heads) == [ONE]
    first = FedGMH().server_init(central).heads
    assert list(first) == [0, 1, 2]
    for h in first.values():
        close(dict(h), {k: START[k] for k in HEAD})
    own = FedGMH().client_init(bench(plan(FedGMH()), 0, 0))
    close(dict(own.phi | own.h), START)
    assert own.psi is None
