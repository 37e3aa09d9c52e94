"""Robust rules against values found by hand, and against clients that lie."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import headwise as hw
from attacks import ATTACKS, Hostile, label_flip, poisoned_prototypes, swapped_prototypes
from headwise.app.launch import data_folder
from headwise.app.prepare import prepare
from headwise.contract.averaging import Shared
from headwise.contract.benches import ClassMeans
from headwise.contract.robust import combine
from headwise.engine.driver import drive
from headwise.engine.events import Event, RoundEnded
from headwise.engine.executors.local import Serial
from headwise.engine.plan import Plan
from headwise.errors import ConfigError
from headwise.methods.fedavg import FedAvg
from headwise.params import Params, mean
from headwise.settings.options import Robust
from headwise.testing.toy import toy_plan

RULES = ("median", "trimmed", "clipped", "krum", "multi-krum", "geometric")


def models(*points: tuple[float, float]) -> list[Params]:
    """Models of two numbers in two tensors, and a counter."""
    return [
        Params(a=torch.tensor([[x]]), b=torch.tensor([y]), steps=torch.tensor(k)) for k, (x, y) in enumerate(points)
    ]


def found(rule: str, *points: tuple[float, float], hostile: float = 0.2, **settings: Any) -> tuple[float, float]:
    items = models(*points)
    given = {"weights": [1.0] * len(items), "around": items[0].zeros(), "clip": None, **settings}
    w = combine(rule, items, hostile=hostile, **given)
    assert {k: (t.shape, t.dtype) for k, t in w.items()} == {k: (t.shape, t.dtype) for k, t in items[0].items()}
    assert w["steps"] == 0, "counters are those of the first"
    return w["a"].item(), w["b"].item()


POINTS = ((1.0, 10.0), (2.0, 20.0), (3.0, 60.0), (4.0, 40.0), (100.0, -500.0))


def test_median_of_each_coordinate() -> None:
    assert found("median", *POINTS) == (3.0, 20.0)
    assert found("median", *POINTS[:4]) == pytest.approx((2.5, 30.0)), "of an even number, the middle between two"


def test_trimmed_mean_of_each_coordinate() -> None:
    assert found("trimmed", *POINTS) == pytest.approx((3.0, 70 / 3)), "one of five at each end is left out"
    assert found("trimmed", *POINTS, hostile=0.1) == pytest.approx((22.0, -74.0)), "a tenth of five is nobody"
    assert found("trimmed", *POINTS, hostile=0.5) == pytest.approx((3.0, 20.0)), "never all"


def test_clipped_mean_of_changes() -> None:
    """Changes (3, 4), (6, 8), (30, 40) from (1, 1), of norms 5, 10 and 50."""
    points = ((4.0, 5.0), (7.0, 9.0), (31.0, 41.0))
    around = Params(a=torch.tensor([[1.0]]), b=torch.tensor([1.0]), steps=torch.tensor(0))
    assert found("clipped", *points, around=around, clip=5.0) == pytest.approx((4.0, 5.0))
    assert found("clipped", *points, around=around) == pytest.approx((1 + (3 + 6 + 6) / 3, 1 + (4 + 8 + 8) / 3))
    weighted = found("clipped", *points, around=around, clip=100.0, weights=[2.0, 1.0, 1.0])
    assert weighted == pytest.approx((1 + (6 + 6 + 30) / 4, 1 + (8 + 8 + 40) / 4))


def test_krum_is_the_one_nearest_to_its_neighbours() -> None:
    """Five with one hostile: two neighbours count. Scores on the line 0, 1, 3, 4.5, 99: 10, 5, 6.25, 14.5, ..."""
    line = ((0.0, 0.0), (1.0, 0.0), (3.0, 0.0), (4.5, 0.0), (99.0, 0.0))
    assert found("krum", *line) == (1.0, 0.0)
    assert found("multi-krum", *line) == pytest.approx((8.5 / 4, 0.0))
    assert found("krum", (7.0, 1.0)) == (7.0, 1.0), "of one, that one"


def test_geometric_median() -> None:
    """Of the corners of an equilateral triangle, its centre; of three on a line, the middle one."""
    height = math.sqrt(3)
    corners = ((-1.0, 0.0), (1.0, 0.0), (0.0, height))
    assert found("geometric", *corners) == pytest.approx((0.0, height / 3), abs=1e-4)
    assert found("geometric", (0.0, 0.0), (1.0, 0.0), (50.0, 0.0)) == pytest.approx((1.0, 0.0), abs=1e-3)
    most = found("geometric", (0.0, 0.0), (1.0, 0.0), weights=[1.0, 3.0])
    assert most == pytest.approx((1.0, 0.0), abs=1e-3), "more than half the weight decides"


def test_the_mean_is_the_mean() -> None:
    items = models(*POINTS)
    both = combine("mean", items, [1, 2, 3, 4, 5], items[0], 0.2, None), mean(items, [1, 2, 3, 4, 5])
    assert all(torch.equal(both[0][k], both[1][k]) for k in both[0])


@pytest.mark.parametrize("rule", RULES)
def test_equal_models_are_their_own_average(rule: str) -> None:
    assert found(rule, *[(0.3, -7.0)] * 5, around=models((0.3, -7.0))[0]) == pytest.approx((0.3, -7.0))


@pytest.mark.parametrize("rule", RULES)
def test_one_liar_in_five_moves_it_a_little(rule: str) -> None:
    honest = [(1.0, 1.0), (1.1, 0.9), (0.9, 1.1), (1.05, 1.0)]
    x, y = found(rule, *honest, (1e6, -1e6))
    assert abs(x - 1) < 0.5
    assert abs(y - 1) < 0.5


def accuracy(plan: Plan, rule: Any, attack: str, hostile: set[int]) -> float:
    """Of the honest clients after the last round."""
    plan = plan.with_settings(robust=Robust(rule))
    if attack == "label flip":
        plan = label_flip(plan, hostile)
    executor: Any = Serial(plan)
    executor = Hostile(executor, hostile, ATTACKS[attack]) if attack in ATTACKS else executor
    last: list[RoundEnded] = []

    def see(event: Event) -> None:
        if isinstance(event, RoundEnded):
            last[:] = [event]

    drive(plan, executor, [see])
    scores = [line["pre"]["test"] for line in last[0].clients if line["client"] not in hostile]
    return sum(s["accuracy"] * s["n"] for s in scores) / sum(s["n"] for s in scores)


@pytest.fixture(scope="module")
def digits() -> Plan:
    small = {"partition": "iid", "clients": 10, "rounds": 8, "model": "linear", "fraction": 0.5}
    return prepare(
        hw.Experiment(data="digits", method="fedavg", evaluate={"every": 8}, **small), data_folder(None)
    ).plan


@pytest.mark.parametrize("attack", ATTACKS)
def test_rules_withstand_what_the_mean_does_not(digits: Plan, attack: str) -> None:
    liars = {2, 7}
    assert accuracy(digits, "mean", "", liars) > 0.85
    assert accuracy(digits, "mean", attack, liars) < 0.8
    for rule in ("median", "trimmed", "krum", "multi-krum", "geometric"):
        assert accuracy(digits, rule, attack, liars) > 0.8, rule


def test_label_flip_changes_only_what_the_hostile_train_on(digits: Plan) -> None:
    flipped = label_flip(digits, {3})
    for c in range(len(digits.data)):
        now, before = flipped.data.client(c), digits.data.client(c)
        assert torch.equal(now.test.y, before.test.y)
        assert torch.equal(now.train.y, 9 - before.train.y if c == 3 else before.train.y)


def test_poisoned_prototypes_stand_under_other_labels() -> None:
    up = ClassMeans(torch.tensor([0, 4]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    lie = poisoned_prototypes(up, up, torch.Generator())
    assert isinstance(lie, ClassMeans)
    assert lie.means.tolist() == [[30.0, 40.0], [10.0, 20.0]]
    subtle = swapped_prototypes(up, up, torch.Generator())
    assert isinstance(subtle, ClassMeans)
    assert subtle.means.tolist() == [[3.0, 4.0], [1.0, 2.0]]
    with pytest.raises(TypeError):
        poisoned_prototypes(up, Shared(Params()), torch.Generator())


@pytest.mark.parametrize("rule", RULES)
def test_the_averaging_half_uses_the_rule(rule: Any) -> None:
    plan = toy_plan(FedAvg()).with_settings(robust=Robust(rule))
    ended: list[RoundEnded] = []
    drive(plan, Serial(plan), [lambda e: ended.append(e) if isinstance(e, RoundEnded) else None])
    w = ended[0].progress.server.w  # pyright: ignore[reportAttributeAccessIssue]
    plain = toy_plan(FedAvg())
    drive(plain, Serial(plain), [lambda e: ended.append(e) if isinstance(e, RoundEnded) else None])
    other = ended[plan.experiment.rounds].progress.server.w  # pyright: ignore[reportAttributeAccessIssue]
    assert any(not torch.equal(w[k], other[k]) for k in w)


def test_methods_that_average_in_their_own_way_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"robust.rule is 'median', but fedgh averages in its own way"):
        prepare(hw.Experiment(method="fedgh", robust={"rule": "median"}), data_folder(None))
