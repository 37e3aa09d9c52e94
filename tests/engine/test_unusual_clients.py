"""Unusual clients: never drawn, with one class, one sample, no test samples, or unknown classes in the test."""

from __future__ import annotations

import math
from typing import Any

import pytest
from bench_of_tests import federation, play, prepare

from headwise.app import registry
from headwise.models.mlp import MLP
from headwise.settings.names import list_names
from headwise.settings.options import Evaluate, Sampling, Train

UNUSUAL: dict[str, tuple[list[int], list[int], list[int]]] = {
    "usual": ([0, 1, 2, 0, 1, 2], [], [0, 1, 2]),
    "one class": ([1, 1, 1, 1], [], [1, 1]),
    "one sample": ([2], [], [2]),
    "a class only in the test": ([0, 0, 1, 1], [], [2, 2, 0]),
    "nothing to test on": ([0, 1, 2], [], []),
    "one sample, nothing to test on": ([0], [], []),
}
METHODS = list_names("method")


def _plan(name: str, **changes: Any) -> Any:
    return prepare(registry.find("method", name)(), federation(list(UNUSUAL.values())), **changes)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_copes_with_them_and_loses_nobody(name: str) -> None:
    played = play(_plan(name, rounds=2))
    for row in played.rows:
        assert row["clients"] == list(range(6))
        for moment in ("pre", "post", "stale"):
            assert row[moment]["clients"] == 4, "exactly those with test samples"
            assert row[moment]["samples"] == 9
            assert math.isfinite(row[moment]["loss"])
    assert len(played.lines) == 2 * 6, "those without test samples have a line, too"
    silent = [line for line in played.lines if line["client"] in (4, 5)]
    assert all(line["pre"] == {"test": None, "val": None} for line in silent)
    assert all(line["samples"] > 0 for line in played.lines), "everybody trained"


@pytest.mark.parametrize("name", METHODS)
def test_clients_that_are_never_drawn_are_measured_all_the_same(name: str) -> None:
    plan = _plan(name, rounds=2, sampling=Sampling(0.17))
    played = play(plan)
    usual = [row for row in played.rows if not plan.method.draws_everyone(row["round"], 2)]
    drawn = {c for row in usual for c in row["clients"]}
    last = played.rows[-1]
    assert 1 <= len(drawn) <= 2
    assert last["pre"]["clients"] == last["stale"]["clients"] == 4
    assert {line["client"] for line in played.lines if "pre" in line} == set(range(6))


def test_a_federation_without_any_test_samples_still_trains() -> None:
    played = play(prepare(registry.find("method", "fedavg")(), federation([([0, 1, 2], [], [])] * 3)))
    assert all(row["pre"] == {"clients": 0, "samples": 0} for row in played.rows)
    assert all(row["samples"] == 9 for row in played.rows)


def test_a_single_client_is_a_federation() -> None:
    data = federation([([0, 1, 2] * 4, [], [0, 1, 2])])
    rows = play(prepare(registry.find("method", "fedavg")(), data, sampling=Sampling(0.1))).rows
    assert all(row["clients"] == [0] for row in rows)
    assert rows[-1]["pre"]["accuracy"] == rows[-1]["post"]["accuracy"], "the mean of one is that one"


def test_clients_with_less_than_a_batch_never_train_when_the_last_batch_is_dropped() -> None:
    played = play(_plan("fedavg", rounds=1, train=Train(batch=4, drop_last=True)))
    samples = {line["client"]: line["samples"] for line in played.lines}
    assert samples == {0: 4, 1: 4, 2: 0, 3: 4, 4: 0, 5: 0}


def test_a_class_that_nobody_has_is_never_counted() -> None:
    data = federation([([0, 1], [], [0, 1])] * 2, classes=5)
    rows = play(prepare(registry.find("method", "fedavg")(), data, [MLP(hidden=4).build(data.task)])).rows
    assert all(0 <= row["pre"]["balanced"] <= 1 for row in rows)


def test_a_model_that_diverged_is_measured_and_not_hidden() -> None:
    played = play(_plan("fedavg", rounds=4, train=Train(batch=1, lr=1e6, epochs=5), evaluate=Evaluate()))
    assert not math.isfinite(played.rows[-1]["pre"]["loss"])
    assert played.rows[-1]["pre"]["samples"] == 9
