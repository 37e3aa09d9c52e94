"""Optimizers, clipping, and how many steps: against torch.optim, by hand, and for every method."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from bench_of_tests import federation, prepare
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

import headwise as hw
from headwise.app import registry
from headwise.app.checks import check_training
from headwise.contract.averaging import Shared
from headwise.contract.benches import split_epochs
from headwise.engine.client.client_bench import ClientBench, count_batches
from headwise.engine.client.jobs import Job, handle
from headwise.engine.kernels.native.chain import native
from headwise.engine.kernels.optimizer import Optimizer, rates_of
from headwise.engine.kernels.training import choose
from headwise.errors import ConfigError
from headwise.methods.fedavg import FedAvg
from headwise.methods.fedkd import FedKD
from headwise.models.base import Task
from headwise.params import Params
from headwise.privacy.dp_sgd import DPSGD
from headwise.settings.choices import Choice
from headwise.settings.experiment import Experiment
from headwise.settings.names import list_names
from headwise.settings.options import Stop, Train
from headwise.testing.toy import TRAIN, play, toy_plan
from headwise.testing.watching import Apart
from same_runs import rows

ADAM: dict[str, Any] = {"optimizer": "adam", "lr": 0.02}
UPDATES: list[dict[str, Any]] = [
    ADAM,
    {**ADAM, "weight_decay": 0.3},
    {**ADAM, "betas": (0.5, 0.7), "eps": 0.01},
    {**ADAM, "optimizer": "adamw"},
    {**ADAM, "optimizer": "adamw", "weight_decay": 0.3},
    {"clip": 0.1},
    {"clip": 0.1, "momentum": 0.9, "weight_decay": 0.1},
    {**ADAM, "clip": 0.1},
    {"clip": 1e5},
]


def theirs(weights: list[Any], train: Train) -> torch.optim.Optimizer:
    if train.optimizer == "sgd":
        return torch.optim.SGD(weights, train.lr, train.momentum, weight_decay=train.weight_decay)
    kind = torch.optim.Adam if train.optimizer == "adam" else torch.optim.AdamW
    return kind(weights, train.lr, (train.betas[0], train.betas[1]), train.eps, train.weight_decay)


def bench(n: int = 9, **train: Any) -> ClientBench:
    data = federation([([k % 3 for k in range(n)], [], [0])])
    return ClientBench(
        prepare(FedAvg(), data, train=Train(batch=4, **train)), 0, 1, purpose="fit", kept=Params(), trained=0
    )


def same(a: nn.Module, b: nn.Module) -> None:
    for mine, other in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("train", UPDATES, ids=str)
def test_every_step_is_that_of_torch_optim(train: dict[str, Any]) -> None:
    """On weights that also include one which the loss does not reach."""
    torch.manual_seed(0)
    mine = nn.ParameterList([torch.randn(3, 4), torch.randn(3), torch.randn(2)])
    other, settings = copy.deepcopy(mine), Train(**train)
    descent = Optimizer(list(mine.parameters()), rates_of(settings, settings.lr))
    optimizer = theirs(list(other.parameters()), settings)
    for _ in range(5):
        x = torch.randn(6, 4)
        descent.step((x @ mine[0].T + mine[1]).square().mean())
        optimizer.zero_grad()
        (x @ other[0].T + other[1]).square().mean().backward()
        if settings.clip is not None:
            clip_grad_norm_(other.parameters(), settings.clip)
        optimizer.step()
        same(mine, other)


@pytest.mark.parametrize("train", UPDATES, ids=str)
@pytest.mark.parametrize("part", ["all", "head", "by names"])
def test_a_clients_training_is_torchs_own_loop(train: dict[str, Any], part: str) -> None:
    """Of a whole model, of a head under a frozen body, and of parameters outside any module."""
    local, again = bench(**train, epochs=2), bench(**train, epochs=2)
    mine, other, settings = local.init(), again.init(), Train(**train)
    start = [p.detach().clone() for p in mine.head.parameters()]
    if part == "by names":
        found = local.descend(mine.live(), lambda p, x, y: local.loss(mine.given(p), x, y), weights=[*mine.live()])
        mine = local.model(found)
    else:
        assert local.sgd(mine, only=mine.head if part == "head" else None) == 6
    learning = list((other.head if part == "head" else other).parameters())
    optimizer = theirs(learning, settings)
    for x, y in again.batches():
        optimizer.zero_grad()
        cross_entropy(other(x), y).backward()
        if settings.clip is not None:
            clip_grad_norm_(learning, settings.clip)
        optimizer.step()
    same(mine, other)
    assert not any(torch.equal(a, b) for a, b in zip(start, mine.head.parameters(), strict=True))


def test_only_what_is_named_a_weight_gets_the_experiments_optimizer() -> None:
    """A method's own parameters keep their plain steps, unclipped."""
    start = Params(w=torch.tensor([3.0, 4.0]), mu=torch.tensor([1.0]))

    def loss(p: Params, x: Tensor, y: Tensor) -> Tensor:
        return p["w"] @ torch.tensor([6.0, 8.0]) + 7 * p["mu"].sum()

    moved = bench(4, steps=1, **ADAM, clip=0.5).descend(start, loss, lr=0.02, weights=["w"])
    assert moved["mu"].item() == pytest.approx(1 - 0.02 * 7)
    torch.testing.assert_close(moved["w"], torch.tensor([2.98, 3.98]))  # Adam's first step is lr, whatever the gradient
    plain = bench(4, steps=1, clip=0.5).descend(start, loss, lr=1.0, weights=["w"])
    torch.testing.assert_close(plain["w"], torch.tensor([2.7, 3.6]))  # 10 long, clipped to 0.5


def test_the_state_of_an_optimizer_is_fresh_in_each_phase() -> None:
    local = bench(**ADAM)
    m = local.init()
    before = [p.detach().clone() for p in m.parameters()]
    for _ in range(2):
        x, y = next(iter(local.batches(1)))
        local.sgd(m, loss=lambda a, b, x=x, y=y: cross_entropy(m(x), y), epochs=0.01)
    steps = [(a - b).abs().max().item() for a, b in zip(before, m.parameters(), strict=True)]
    assert max(steps) == pytest.approx(2 * 0.02, rel=1e-3)  # each is a first step again


def test_a_methods_own_clip_comes_first() -> None:
    assert rates_of(Train(clip=0.1), 0.5, 7.0).clip == 7.0
    assert rates_of(Train(clip=0.1), 0.5).clip == 0.1
    assert FedKD.optimizers == "any"


@pytest.mark.parametrize(
    "train",
    [{}, {"clip": 1.0}, ADAM, {**ADAM, "optimizer": "adamw"}],
    ids=str,
)
def test_the_native_kernel_knows_every_optimizer(train: dict[str, Any]) -> None:
    expected = "native" if native().library else "plain"
    for net in (nn.Sequential(nn.Linear(4, 3)), nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))):
        rates = rates_of(Train(**train), 0.1)
        assert choose(net, [net], None, rates, models=[net]).name == expected
        assert choose(net, [net], None, rates, models=[net], whole=False).name == "plain"


@pytest.mark.parametrize(
    ("n", "train", "steps"),
    [
        (9, {"epochs": 0.5}, 2),
        (9, {"epochs": 1 / 3}, 1),
        (9, {"epochs": 0.001}, 1),
        (9, {"epochs": 2.5}, 8),
        (8, {"epochs": 1.5}, 3),
        (9, {"epochs": 3}, 9),
        (9, {"steps": 1}, 1),
        (9, {"steps": 3}, 3),
        (9, {"steps": 7}, 7),
        (2, {"steps": 7}, 7),
        (9, {"steps": 5, "drop_last": True}, 5),
        (3, {"steps": 5, "drop_last": True}, 0),
        (9, {"epochs": 0.5, "drop_last": True}, 1),
        (401, {"steps": 49}, 49),
    ],
)
@pytest.mark.parametrize("loss", [False, True])
def test_steps_and_fractions_of_an_epoch(n: int, train: dict[str, Any], steps: int, loss: bool) -> None:
    """Eagerly, as fast kernels draw them, and one after the other, as autograd does: the same batches."""
    local, again = bench(n, **train), bench(n, **train)
    m = local.init()
    own = (lambda x, y: cross_entropy(m(x), y)) if loss else None
    assert local.sgd(m, loss=own) == steps
    rows = again._draw_batches(None, 4)
    lazily = list(bench(n, **train)._draw_lazily(None, 4, drop_single=False))
    assert len(rows) == len(lazily) == steps
    assert all(torch.equal(row[row >= 0], i) for row, i in zip(rows, lazily, strict=True))
    each = max(1, count_batches(n, 4, drop_last=local._settings.drop_last))
    for first in range(0, steps, each):  # nothing is seen twice before everything was seen once
        seen = torch.cat(lazily[first : first + each])
        assert len(seen) == len(set(seen.tolist()))


def test_a_part_of_the_samples_takes_as_many_steps() -> None:
    local = bench(9, steps=5).window(0.5)
    assert (local.n, local.sgd(local.init())) == (4, 5)


def test_passes() -> None:
    assert [split_epochs(e) for e in (0, 1, 2, 0.25, 2.5)] == [[], [1], [1, 1], [0.25], [1, 1, 0.5]]


@pytest.mark.parametrize("name", list_names("method"))
def test_a_method_uses_the_optimizer_or_refuses_it(name: str) -> None:
    """A setting without an effect would be a lie in every comparison."""
    method = registry.find("method", name)()
    for change, text in (({"optimizer": "adam"}, "train.optimizer is 'adam'"), ({"clip": 0.01}, "train.clip is 0.01")):
        plan, usual = (toy_plan(method, train=replace(TRAIN, **c), rounds=1, moments=()) for c in (change, {}))
        experiment = replace(Experiment(method=Choice(name)), train=plan.experiment.train)
        if method.optimizers != "any" or ("clip" in change and "clip" in vars(method)):
            with pytest.raises(ConfigError, match=rf"^{text}, but .*\b{name}\b"):
                check_training(experiment, method, plan.data.task)
            if method.optimizers != "sgd":  # it would have no effect
                assert play(plan).trace().states == play(usual).trace().states
            continue
        check_training(experiment, method, plan.data.task)
        mine, other = (play(p).trace() for p in (plan, usual))
        assert (mine.server, mine.states) != (other.server, other.states)


@pytest.mark.parametrize("train", [{"steps": 3}, {"epochs": 1.5}], ids=str)
@pytest.mark.parametrize("name", list_names("method"))
def test_every_method_can_count_steps(name: str, train: dict[str, Any]) -> None:
    plan = toy_plan(registry.find("method", name)(), train=Train(batch=4, lr=0.1, **train), rounds=1, moments=())
    assert len(play(plan).ended) == 1


def test_clients_in_company_and_alone_get_the_same_bits() -> None:
    for name in ("fedavg", "fedrep", "fedafk"):
        plan = toy_plan(registry.find("method", name)(), train=Train(batch=4, steps=5, clip=0.5, **ADAM), rounds=2)
        assert play(plan, nervous=True).trace() == play(plan, Apart(plan), nervous=True).trace()


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ({"optimizer": "rmsprop"}, "train.optimizer is 'rmsprop'"),
        ({"optimizer": "adam", "momentum": 0.9}, "train.momentum is 0.9, but train.optimizer is 'adam'"),
        ({"betas": [0.9]}, r"train.betas is \[0.9\], but must be two numbers"),
        ({"betas": [0.9, 1.0]}, r"train.betas\[1\] is 1.0, but must be from 0 to"),
        ({"steps": 4, "epochs": 2}, "train.steps is 4 and train.epochs 2, but only one"),
        ({"steps": 0}, "train.steps is 0, but must be from 1"),
        ({"epochs": 0}, "train.epochs is 0.0, but must be above 0"),
        ({"clip": 0}, "train.clip is 0.0, but must be above 0"),
        ({"augment": ["rotate"]}, r"train.augment\[0\] is 'rotate'"),
        ({"augment": ["flip", "flip"]}, "must name each change once"),
    ],
)
def test_settings_that_contradict_each_other(train: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        hw.Experiment(**{"train": train})
    if "betas" not in train and "augment" not in train:
        with pytest.raises(ConfigError, match=said):
            hw.Experiment(train=Train(**train))


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ({"clip": 1.0}, "train.clip is 1, but privacy.level is 'example', which clips by privacy.clip"),
        ({"augment": ("flip",)}, "train.augment is ..flip.., but privacy.level is 'example'"),
        ({"steps": 3}, "train.steps is 3, but privacy.level is 'example', and epsilon only covers whole epochs"),
        ({"epochs": 0.5}, "train.epochs is 0.5, but privacy.level"),
    ],
    ids=str,
)
def test_what_epsilon_does_not_cover_is_refused(train: dict[str, Any], said: str) -> None:
    task = Task((1, 8, 8), 3)
    private = hw.Experiment(**{"train": train, "privacy": {"clip": 1.0, "level": "example"}})
    with pytest.raises(ConfigError, match=said):
        check_training(private, FedAvg(), task)
    check_training(replace(private, privacy=replace(private.privacy, level="client")), FedAvg(), task)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_adam_after_private_gradients(name: Any) -> None:
    """With next to no noise, and a clip that no gradient reaches, it is Adam on all samples of a client."""
    train = Train(batch=50, lr=0.02, optimizer=name, weight_decay=0.1, epochs=3)
    plan = replace(toy_plan(FedAvg(), train=train), privacy=DPSGD(1000.0, 1e-12, source="seed"))
    answer, _ = handle(plan, Job("fit", 0, 1, Shared(plan.models[0].params())), None)
    assert isinstance(answer.up, Shared)
    data, m = plan.data.client(0).train, copy.deepcopy(plan.models[0])
    optimizer = theirs(list(m.parameters()), train)
    for _ in range(3):
        optimizer.zero_grad()
        cross_entropy(m(data.x), data.y).backward()
        optimizer.step()
    for k, t in m.params().items():
        torch.testing.assert_close(answer.up.w[k], t, rtol=0, atol=1e-5)


def test_a_resumed_run_is_uninterrupted(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"optimizer": "adam", "lr": 0.01, "augment": ["flip", "crop"], "epochs": 0.5, "clip": 1.0}
    asked: dict[str, Any] = {
        "method": "fedrep",
        "data": "digits",
        "fraction": 0.2,
        "clients": 3,
        "rounds": 3,
        "train": changes,
    }
    whole = hw.run(hw.Experiment(**asked), tmp_path / "whole")
    hw.run(hw.Experiment(**asked, stop=Stop(budget=1e-6)), tmp_path / "parts")
    hw.resume(tmp_path / "parts")
    resumed = hw.resume(tmp_path / "parts")
    assert len(whole.rounds) == len(resumed.rounds) == 3
    assert rows(whole) == rows(resumed)
