"""The primitives that methods are written in (optimizer, batches, features, class means) against arithmetic by hand."""

from __future__ import annotations

import byhand
import pytest
import torch
from byhand import BODY, CLIENTS, HEAD, START, Weights, close, descend, gradient
from tiny import bench, data_of, model_of, plan_of, run
from torch import Tensor, nn

from headwise.methods.fedavg import FedAvg
from headwise.models.split import SplitModel
from headwise.params import Params
from headwise.seeds import seed_of

X, Y = torch.cat([x for x, _ in CLIENTS]), torch.cat([y for _, y in CLIENTS])
ALL = [(X, Y)]


def orders(n: int, epochs: int, client: int = 0, t: int = 1) -> list[list[int]]:
    """The order of samples in each epoch: one generator per client and round, a permutation per epoch."""
    rng = torch.Generator().manual_seed(seed_of(0, "fit", client, t))
    return [torch.randperm(n, generator=rng).tolist() for _ in range(epochs)]


def norm_model() -> SplitModel:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return SplitModel(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU()), nn.Linear(3, 3)).eval()


def test_minibatches_follow_the_clients_own_generator() -> None:
    """Six samples in batches of 4: each epoch is a new permutation, cut into 4 and 2; a step on each."""
    w = START
    for order in orders(6, epochs=2):
        for batch in (order[:4], order[4:]):
            w = descend(w, X[batch], Y[batch], 0.5)
    m = model_of()
    steps = bench(plan_of(clients=ALL, batch=4, epochs=2)).sgd(m)
    assert steps == 4
    close(dict(m.params()), w)


def test_batches_and_sgd_draw_the_same_orders() -> None:
    local = bench(plan_of(clients=ALL, batch=4))
    wanted = [order[i : i + 4] for order in orders(6, epochs=2) for i in (0, 4)]
    got = list(local.batches(2))
    assert [y.tolist() for _, y in got] == [Y[b].tolist() for b in wanted]
    assert all(torch.equal(x, X[b]) for (x, _), b in zip(got, wanted, strict=True))


def test_each_client_and_round_has_its_own_order() -> None:
    clients = [(X, Y), (X, Y)]
    plan = plan_of(clients=clients, batch=6)
    seen = [tuple(next(iter(bench(plan, c, t).batches()))[1].tolist()) for c in (0, 1) for t in (1, 2, 3)]
    assert len(set(seen)) > 1
    assert seen == [tuple(Y[orders(6, 1, c, t)[0]].tolist()) for c in (0, 1) for t in (1, 2, 3)]


def test_momentum() -> None:
    """v <- m v + g, w <- w - lr v, v = 0 at the beginning of each phase."""
    w: Weights = START
    v = {k: torch.zeros_like(t) for k, t in w.items()}
    for _ in range(3):
        g = gradient(w, X, Y)
        v = {k: 0.9 * v[k] + g[k] for k in w}
        w = {k: w[k] - 0.1 * v[k] for k in w}
    m = model_of()
    bench(plan_of(clients=ALL, lr=0.1, momentum=0.9, epochs=3)).sgd(m)
    close(dict(m.params()), w)


def test_momentum_is_fresh_in_each_phase() -> None:
    m, local = model_of(), bench(plan_of(clients=ALL, lr=0.1, momentum=0.9))
    local.sgd(m, epochs=1)
    local.sgd(m, epochs=1)
    close(dict(m.params()), descend(START, X, Y, 0.1, 2))


def test_weight_decay() -> None:
    """w <- w - lr (g + wd w)."""
    w = START
    for _ in range(2):
        g = gradient(w, X, Y)
        w = {k: w[k] - 0.1 * (g[k] + 0.3 * w[k]) for k in w}
    m = model_of()
    bench(plan_of(clients=ALL, lr=0.1, weight_decay=0.3, epochs=2)).sgd(m)
    close(dict(m.params()), w)


def test_learning_rate_decays_per_round() -> None:
    """lr gamma^(t-1)."""
    plan = plan_of(lr=0.8, lr_decay=0.5)
    assert [bench(plan, t=t, trained=7).lr for t in (1, 2, 3)] == [0.8, 0.4, 0.2]
    w = START
    for t in range(2):
        w = byhand.weighted([descend(w, x, y, 0.8 * 0.5**t) for x, y in CLIENTS])
    close(dict(run(plan_of(FedAvg(), rounds=2, lr=0.8, lr_decay=0.5)).server.w), w)


def test_learning_rate_decays_per_participation() -> None:
    """lr gamma^(how often this client has trained)."""
    plan = plan_of(lr=0.8, lr_decay=0.5, lr_decay_per="participation")
    assert [bench(plan, t=9, trained=k).lr for k in (0, 1, 2)] == [0.8, 0.4, 0.2]


def test_participations_are_counted_by_the_engine() -> None:
    """Two of three clients a round: after three rounds a client's rate has decayed as often as it trained."""
    plan = plan_of(FedAvg(), rounds=3, ratio=0.67, lr=0.8, lr_decay=0.5, lr_decay_per="participation")
    end = run(plan)
    drawn = [c for row in end.rows for c in row["clients"]]
    assert {c: s.trained for c, s in end.states.items()} == {c: drawn.count(c) for c in set(drawn)}
    w, times = START, dict.fromkeys(range(3), 0)
    for row in end.rows:
        parts = [descend(w, *CLIENTS[c], 0.8 * 0.5 ** times[c]) for c in row["clients"]]
        w = byhand.weighted(parts, sizes=[c + 1 for c in row["clients"]])
        times |= {c: times[c] + 1 for c in row["clients"]}
    close(dict(end.server.w), w)


def test_drop_last_leaves_out_the_smaller_batch() -> None:
    m = model_of()
    assert bench(plan_of(clients=ALL, batch=4, drop_last=True)).sgd(m) == 1
    batch = orders(6, 1)[0][:4]
    close(dict(m.params()), descend(START, X[batch], Y[batch], 0.5))


def test_drop_last_with_less_than_one_batch_never_trains() -> None:
    m = model_of()
    assert bench(plan_of(clients=ALL, batch=7, drop_last=True)).sgd(m) == 0
    close(dict(m.params()), START)


def test_one_sample_is_dropped_only_under_batchnorm() -> None:
    """Three samples in batches of 2 end in one sample: it has no variance, unless it is all that the client has."""
    three = [(X[:3], Y[:3])]
    assert bench(plan_of(clients=three, batch=2)).sgd(model_of()) == 2
    assert bench(plan_of(clients=three, batch=2, model=norm_model())).sgd(norm_model()) == 1


def test_client_with_one_sample_trains_with_the_statistics_as_they_are() -> None:
    m = norm_model()
    before = {k: t.clone() for k, t in m.named_buffers()}
    bias = m.head.bias.detach().clone()
    assert bench(plan_of(clients=[(X[:1], Y[:1])], model=norm_model())).sgd(m) == 1
    assert all(torch.equal(t, before[k]) for k, t in m.named_buffers())
    assert not torch.equal(m.head.bias, bias)


def test_batchnorm_statistics_follow_the_batches() -> None:
    """running <- 0.9 running + 0.1 batch mean of the layer's input, from zero."""
    m = norm_model()
    first = m.body[0]
    a = X @ first.weight.detach().T + first.bias.detach()
    bench(plan_of(clients=ALL, model=norm_model())).sgd(m)
    torch.testing.assert_close(m.body[1].running_mean, 0.1 * a.mean(0))
    torch.testing.assert_close(m.body[1].running_var, 0.9 + 0.1 * a.var(0, unbiased=True))


@pytest.mark.parametrize(("part", "names"), [("body", BODY), ("head", HEAD)])
def test_only_a_part_learns(part: str, names: tuple[str, ...]) -> None:
    m = model_of()
    before = m.params()
    bench(plan_of(clients=ALL, epochs=3)).sgd(m, only=getattr(m, part))
    close(dict(m.params()), descend(START, X, Y, 0.5, 3, only=names))
    frozen = [k for k in before if k not in names]
    assert frozen
    assert all(torch.equal(m.params()[k], before[k]) for k in frozen)


def test_frozen_body_keeps_its_statistics_and_everything_can_learn_again() -> None:
    m = norm_model()
    before = m.state("body")
    local = bench(plan_of(clients=ALL, model=norm_model()))
    local.sgd(m, only=m.head, epochs=3)
    assert all(torch.equal(t, before[k]) for k, t in m.state("body").items())
    assert all(p.requires_grad for p in m.parameters())
    assert not m.training
    local.sgd(m)
    for name in ("0.weight", "1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert not torch.equal(m.state("body")[f"body.{name}"], before[f"body.{name}"])


def test_frozen_body_is_frozen_under_a_loss_of_ones_own() -> None:
    """The loss runs the whole model, so nothing but its mode keeps the statistics, and no gradient is computed."""
    m, local = norm_model(), bench(plan_of(clients=ALL, model=norm_model()))
    before, bias = m.state("body"), m.head.bias.detach().clone()
    local.sgd(m, only=m.head, epochs=3, loss=lambda x, y: local.loss(m, x, y))
    assert all(torch.equal(t, before[k]) for k, t in m.state("body").items())
    assert all(p.grad is None for p in m.body.parameters())
    assert not torch.equal(m.head.bias, bias)


def test_head_phase_after_the_body_moved_sees_the_new_features() -> None:
    """Features of a frozen body are extracted once; a body that has moved since must be seen anew."""
    m, local = model_of(), bench(plan_of(clients=ALL))
    for only in (m.head, m.body, m.head):
        local.sgd(m, only=only, epochs=2)
    w = START
    for names in (HEAD, BODY, HEAD):
        w = descend(w, X, Y, 0.5, 2, only=names)
    close(dict(m.params()), w)


def test_own_loss_and_learning_rate() -> None:
    """loss = L + sum(c): one more on the slope of every bias of the head; step 0.25."""
    m, local = model_of(), bench(plan_of(clients=ALL))
    local.sgd(m, lr=0.25, loss=lambda x, y: local.loss(m, x, y) + m.head.bias.sum())
    w = descend(START, X, Y, 0.25)
    close(dict(m.params()), w | {byhand.C: w[byhand.C] - 0.25})


def test_project_follows_every_step() -> None:
    """V is put back into [-1/2, 1/2] after each of three steps, which is not the same as once at the end."""
    m = model_of()

    def clip() -> None:
        m.head.weight.clamp_(-0.5, 0.5)

    bench(plan_of(clients=ALL, epochs=3)).sgd(m, project=clip)
    w = START
    for _ in range(3):
        w = descend(w, X, Y, 0.5)
        w = w | {byhand.V: w[byhand.V].clamp(-0.5, 0.5)}
    close(dict(m.params()), w)


def test_descend() -> None:
    """For loss = mean of (p - x_1)^2, the slope is 2 (p - mean x_1): p <- p - lr 2 (p - mean x_1)."""
    local = bench(plan_of(clients=ALL, lr=0.1))
    start = Params(p=torch.tensor(3.0))
    found = local.descend(start, lambda q, x, y: (q["p"] - x[:, 0]).square().mean(), epochs=4)
    p, goal = 3.0, X[:, 0].mean().item()
    for _ in range(4):
        p -= 0.1 * 2 * (p - goal)
    assert found["p"].item() == pytest.approx(p, abs=1e-6)
    assert start["p"].item() == 3.0
    assert not found["p"].requires_grad


def test_descend_through_a_body_and_into_a_range() -> None:
    """The loss is the mean first feature times p, so the slope is that mean; p is kept at least 0 after each step."""
    local, m = bench(plan_of(clients=ALL)), model_of()
    slope = byhand.features(START, X)[:, 0].mean().item()
    assert slope > 0
    found = local.descend(
        Params(p=torch.tensor(0.3)),
        lambda q, f, y: (q["p"] * f[:, 0]).mean(),
        lr=0.25,
        epochs=3,
        through=m.body,
        project=lambda q: q.map(lambda t: t.clamp(min=0.1)),
    )
    p = 0.3
    for _ in range(3):
        p = max(p - 0.25 * slope, 0.1)
    assert found["p"].item() == pytest.approx(p, abs=1e-6)


def test_features() -> None:
    found = bench(plan_of(clients=ALL)).features(model_of().body)
    torch.testing.assert_close(found.double(), byhand.features(START, X), rtol=0, atol=1e-6)
    assert not found.requires_grad


def test_features_are_those_of_evaluation_and_leave_the_mode() -> None:
    m = norm_model()
    m.body.train()
    found = bench(plan_of(clients=ALL, model=norm_model())).features(m.body)
    assert m.body.training
    torch.testing.assert_close(found, m.eval().body(X))


def test_class_counts() -> None:
    assert bench(plan_of(clients=ALL)).class_counts.tolist() == [1, 2, 3]
    assert [bench(plan_of(), c).class_counts.tolist() for c in range(3)] == [[1, 0, 0], [0, 1, 1], [0, 1, 2]]


def test_class_means() -> None:
    """Mean feature of each class by hand; weighted by the counts they give back the mean over all samples."""
    local = bench(plan_of(clients=ALL))
    labels, means = (getattr(local.class_means(model_of().body), k) for k in ("labels", "means"))
    f = byhand.features(START, X)
    wanted = torch.stack([f[0], (f[1] + f[4]) / 2, (f[2] + f[3] + f[5]) / 3])
    assert labels.tolist() == [0, 1, 2]
    assert labels.dtype == torch.int32
    torch.testing.assert_close(means.double(), wanted, rtol=0, atol=1e-6)
    counts = local.class_counts
    assert counts.sum() == local.n == 6
    torch.testing.assert_close((counts[:, None] * means).sum(0).double() / 6, f.mean(0), rtol=0, atol=1e-6)


def test_class_means_name_only_the_classes_that_a_client_has() -> None:
    found = bench(plan_of(), 1).class_means(model_of().body)
    assert found.labels.tolist() == [1, 2]
    assert found.means.shape == (2, 2)


@pytest.mark.parametrize("batch", [1, 2, 4, 100])
def test_class_means_do_not_depend_on_the_batch_size(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwise.engine.client.client_bench.FEATURE_BATCH", batch)
    found: Tensor = bench(plan_of(clients=ALL, batch=batch)).class_means(model_of().body).means
    monkeypatch.undo()
    torch.testing.assert_close(found, bench(plan_of(clients=ALL)).class_means(model_of().body).means)


def test_model_with_parameters() -> None:
    local = bench(plan_of(clients=ALL))
    given = Params(dict.fromkeys(["head.bias"], torch.tensor([7.0, 8.0, 9.0])))
    m = local.model(given)
    assert m.head.bias.tolist() == [7, 8, 9]
    assert torch.equal(m.params()["head.weight"], model_of().params()["head.weight"])
    with pytest.raises(KeyError, match="head\\.extra"):
        local.model(Params({"head.extra": torch.zeros(1)}))


def test_init_gives_copies() -> None:
    local = bench(plan_of(clients=ALL))
    with torch.no_grad():
        local.init().head.bias.add_(5)
    close(dict(local.init().params()), START)


def test_data_as_given() -> None:
    data = data_of(CLIENTS)
    assert [len(data.client(c).train) for c in range(3)] == [1, 2, 3]
    assert torch.equal(data.client(2).train.x, CLIENTS[2][0])
