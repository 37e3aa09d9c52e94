"""Features of a frozen body, cached or computed for every batch: the same up to rounding."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from bench_of_tests import federation, prepare
from torch import Tensor, nn

from headwise.app import registry
from headwise.engine.client.client_bench import ClientBench
from headwise.engine.plan import Plan
from headwise.methods.fedavg import FedAvg
from headwise.models.split import SplitModel
from headwise.params import Params
from headwise.settings.options import Engine, Kernels, Train
from headwise.testing.toy import play, toy_plan

KERNELS: tuple[Kernels, Kernels] = ("fast", "plain")
FROZEN = [
    *("fedrep", "fedah", "fedftha", "fedafk", "fedgh", "fedgmh", "fedbabu", "fedproto", "fedala"),
    *("moon", "fedntd", "fedphp", "fedcp", "fedem"),
]


def plan(kernels: Kernels = "fast", *, batch: int = 40, model: SplitModel | None = None) -> Plan:
    data = federation([([k % 3 for k in range(96)], [], [0])])
    torch.manual_seed(0)
    net = model or SplitModel(nn.Sequential(nn.Linear(4, 20), nn.ReLU()), nn.Linear(20, 3))
    return prepare(FedAvg(), data, [net], engine=Engine(kernels=kernels), train=Train(batch=batch, lr=0.5))


def bench(plan: Plan) -> ClientBench:
    return ClientBench(plan, 0, 1, purpose="fit", kept=Params(), trained=0)


def fitted(local: ClientBench) -> Tensor:
    """A head after three epochs under a frozen body."""
    m = local.init()
    local.sgd(m, only=m.head, epochs=3)
    return torch.cat([p.detach().flatten() for p in m.head.parameters()])


def learned(local: ClientBench) -> Tensor:
    """The same by `descend` through the body."""
    m = local.init()
    found = local.descend(m.live("head"), lambda p, x, y: local.loss(m.head_given(p), x, y), epochs=3, through=m.body)
    return torch.cat([p.detach().flatten() for p in found.values()])


@pytest.mark.parametrize("batch", [7, 40])
@pytest.mark.parametrize("train", [fitted, learned])
def test_cached_is_uncached_to_rounding(train: Callable[[ClientBench], Tensor], batch: int) -> None:
    """Not to the bit: libraries multiply few and many rows with different kernels, whose last bits differ."""
    cached, plain = (train(bench(plan(k, batch=batch))) for k in KERNELS)
    torch.testing.assert_close(cached, plain, rtol=0, atol=1e-6)
    start = torch.cat([p.detach().flatten() for p in bench(plan()).init().head.parameters()])
    assert (cached - start).abs().max() > 0.01


@pytest.mark.parametrize("name", FROZEN)
def test_every_method_with_a_frozen_body_comes_to_the_same(name: str) -> None:
    made = toy_plan(registry.find("method", name)(), rounds=2)
    with_it, without = (play(made.with_settings(engine=Engine(kernels=k))).trace().parse()[-1] for k in KERNELS)
    for moment in ("pre", "post"):
        assert with_it[moment]["loss"] == pytest.approx(without[moment]["loss"], rel=1e-5)


def pluralize(model: SplitModel) -> list[int]:
    rows: list[int] = []
    model.body.register_forward_hook(lambda _, args, __: rows.append(len(args[0])))
    return rows


@pytest.mark.parametrize(("kernels", "samples"), [("fast", 96), ("plain", 2 * 3 * 96 + 2 * 96)])
def test_a_body_is_passed_once_however_often_its_features_are_asked_for(kernels: Kernels, samples: int) -> None:
    """Two head phases of three epochs, the features themselves and their class means."""
    local = bench(plan(kernels))
    m = local.init()
    rows = pluralize(m)
    for _ in range(2):
        local.sgd(m, only=m.head, epochs=3)
    local.features(m.body)
    local.class_means(m.body)
    assert sum(rows) == samples


def test_a_body_that_has_changed_is_passed_again() -> None:
    local = bench(plan())
    m = local.init()
    before = local.features(m.body)
    with torch.no_grad():
        next(m.body.parameters()).add_(1.0)
    assert not torch.equal(local.features(m.body), before)


def test_dropout_and_batchnorm_of_a_frozen_body_are_at_rest() -> None:
    """In evaluation mode nothing is random or moves, so its features are the same in every epoch."""
    body = nn.Sequential(nn.Linear(4, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Dropout(0.5))
    local = bench(plan(model=SplitModel(body, nn.Linear(20, 3))))
    m = local.init()
    before = {k: t.clone() for k, t in m.body.state_dict().items()}
    local.sgd(m, only=m.head, epochs=2)
    assert all(torch.equal(t, before[k]) for k, t in m.body.state_dict().items())
    assert torch.equal(local.features(m.body), local.features(m.body))


def test_labels_are_in_the_order_of_features() -> None:
    local = bench(plan())
    body = local.init().body
    features = local.features(body)
    labels = local.labels
    means = local.class_means(body)
    assert len(labels) == len(features) == local.n
    for label, mean in zip(means.labels, means.means, strict=True):
        assert torch.equal(features[labels == label].mean(0), mean)
    labels.zero_()
    assert not torch.equal(local.labels, labels), "a method can't change its client's samples"


@pytest.mark.parametrize(("kernels", "samples"), [("fast", 96), ("plain", 3 * 96)])
def test_a_frozen_network_is_passed_once_in_three_epochs(kernels: Kernels, samples: int) -> None:
    local = bench(plan(kernels, batch=7))
    m, other = local.init(), local.init()
    rows = pluralize(other)
    frozen = local.freeze(other.body)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        torch.testing.assert_close(frozen(x), local.init().body(x), rtol=0, atol=1e-6)
        return local.loss(m, x, y)

    local.sgd(m, loss=loss, epochs=3)
    assert sum(rows) == samples
    assert not frozen(torch.zeros(2, 4)).requires_grad


def test_a_frozen_network_knows_other_samples_apart() -> None:
    """A part of the batch, a window of the samples, features, and a tensor that only has the same values."""
    local = bench(plan(batch=7))
    m = local.init()
    frozen = local.freeze(m.body)
    head = local.freeze(m.head)
    for x, _ in local.batches(1):
        for seen in (x, x[2:], x.clone(), 2 * x):
            torch.testing.assert_close(frozen(seen), m.body(seen), rtol=0, atol=1e-6)
    for x, _ in local.window(0.5).batches(1):
        torch.testing.assert_close(frozen(x), m.body(x), rtol=0, atol=1e-6)
    for f, _ in local.batches(1, through=m.body):
        torch.testing.assert_close(head(f), m.head(f), rtol=0, atol=1e-6)
