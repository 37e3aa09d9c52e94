"""The moments: a hand-made method whose accuracy reveals which one was measured.

A client has ten test samples with x = 0.05, 0.15, ..., 0.95 and label 0. The network says 0 below a threshold, so its
accuracy is the threshold: the round (in tenths) before training, half more after it, 0.9 for the global model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from bench_of_tests import Played, play, prepare

from headwise.contract.benches import Central, Local
from headwise.contract.method import Method, Reply, Update
from headwise.data.dataset import Dataset
from headwise.data.federated import FederatedData
from headwise.data.splits import Parts
from headwise.models.linear import Linear
from headwise.models.split import SplitModel
from headwise.params import Params
from headwise.records import Nothing, Record
from headwise.settings.options import Evaluate, Faults, Sampling

CLIENTS = 4


class Rounds(Record):
    """How many rounds there were."""

    t: int


class Pong(Record):
    """A message of eight bytes."""

    a: int
    b: float


@dataclass(frozen=True)
class Revealing(Method[Rounds, Nothing, Rounds, Pong]):
    """Its accuracy says when it was measured."""

    def server_init(self, central: Central) -> Rounds:
        return Rounds(0)

    def broadcast(self, server: Rounds, client: int, central: Central) -> Rounds:
        return server

    def aggregate(self, server: Rounds, replies: Sequence[Reply[Pong]], central: Central) -> Rounds:
        return Rounds(server.t + 1)

    def global_model(self, server: Rounds, central: Central) -> SplitModel:
        return central.model(below(0.9))

    def client_init(self, local: Local) -> Nothing:
        return Nothing()

    def local_update(self, me: Nothing, down: Rounds, local: Local) -> Update[Pong, Nothing]:
        assert down.t == local.t - 1  # what was sent is from before this round
        return Update(Pong(1, 1.0), me, local.model(below(0.5 + local.t / 10)))

    def personalize(self, me: Nothing, down: Rounds, local: Local) -> SplitModel:
        return local.model(below(down.t / 10))


def below(threshold: float) -> Params:
    """Class 0 where x is below the threshold."""
    return Params({"head.weight": torch.tensor([[-1.0], [0.0]]), "head.bias": torch.tensor([threshold, 0.0])})


def run(rounds: int = 4, ratio: float = 0.25, reaction: Any = None, **evaluate: Any) -> Played:
    x = np.tile(np.r_[[0.0], np.arange(10) / 10 + 0.05], CLIENTS).astype(np.float32)[:, None]
    parts = [Parts(np.array([11 * c]), np.array([], int), 11 * c + 1 + np.arange(10)) for c in range(CLIENTS)]
    data = FederatedData(Dataset(x, np.zeros(len(x), np.int64), ("zero", "one")), parts)
    models = [Linear().build(data.task)]
    settings = {"sampling": Sampling(ratio), "evaluate": Evaluate(**evaluate), "faults": Faults(reaction)}
    return play(prepare(Revealing(), data, models, rounds=rounds, seed=1, **settings))


def expected_stale(played: Played, t: int) -> float:
    """By hand: the last training of each client, or the round itself for those that never trained."""
    last = {c: row["round"] for row in played.rows[:t] for c in row["clients"]}
    return float(np.mean([0.5 + last[c] / 10 if c in last else t / 10 for c in range(CLIENTS)]))


def test_pre_is_of_all_clients_after_aggregation() -> None:
    for row in run().rows:
        assert row["pre"]["accuracy"] == pytest.approx(row["round"] / 10)
        assert row["pre"]["clients"] == CLIENTS


def test_post_is_of_the_participants_after_training() -> None:
    played = run()
    for row in played.rows:
        assert row["post"]["accuracy"] == pytest.approx(0.5 + row["round"] / 10)
        assert row["post"]["clients"] == len(row["clients"]) == 1
    assert all(("post" in line) is ("samples" in line) for line in played.lines)


def test_stale_keeps_the_last_training_and_counts_the_untrained_with_their_pre() -> None:
    played = run()
    drawn: set[int] = set()
    for row in played.rows:
        drawn |= {*row["clients"]}
        assert row["stale"]["accuracy"] == pytest.approx(expected_stale(played, row["round"]))
        assert row["stale"]["clients"] == CLIENTS
        assert row["stale"]["untrained"] == CLIENTS - len(drawn)
    assert 1 < len(drawn) < CLIENTS, "the draw must leave somebody out, or this tests too little"


def test_global_is_one_model_on_everybody() -> None:
    played = run(moments=("pre", "global"))
    for row in played.rows:
        assert row["global"]["accuracy"] == pytest.approx(0.9)
        assert row["global"]["samples"] == 10 * CLIENTS
        assert "post" not in row
        assert "stale" not in row


def test_evaluation_every_other_round_and_always_in_the_last() -> None:
    played = run(rounds=5, every=2)
    assert [row["round"] for row in played.rows if "pre" in row] == [2, 4, 5]
    assert [row["round"] for row in played.rows if "bytes_evaluation" in row] == [2, 4, 5]
    for row in played.rows[1::2]:  # trainings in between count
        assert row["stale"]["accuracy"] == pytest.approx(expected_stale(played, row["round"]))
    followed = [row["round"] for row, after in pairwise(played.rows) if row["clients"] == after["clients"]]
    assert 3 in followed and 1 not in followed, "or this tests too little"
    assert [line["round"] for line in played.lines if "post" in line] == [1, 2, 4, 5]


@pytest.mark.parametrize(("reaction", "measured"), [("stop", {2, 4, 5}), ("skip", {1, 2, 3, 4, 5})])
def test_between_evaluations_only_last_trainings_are_measured(reaction: Any, measured: set[int]) -> None:
    often, rarely = (run(5, ratio=1.0, reaction=reaction, every=every) for every in (1, 2))
    assert {line["round"] for line in rarely.lines if "post" in line} == measured
    for k in (1, 3, 4):
        assert all(rarely.rows[k][m] == often.rows[k][m] for m in ("pre", "post", "stale"))


def test_without_pre_only_the_untrained_are_asked_for_it() -> None:
    played = run(moments=("post",))
    for row in played.rows:
        assert "pre" not in row
        assert row["stale"]["accuracy"] == pytest.approx(expected_stale(played, row["round"]))
        assert row["bytes_evaluation"] == 4 * row["stale"]["untrained"]


def test_a_share_of_the_clients_is_measured_always_the_same_and_training_goes_on_as_before() -> None:
    played, whole = run(clients=0.5, moments=("pre", "post", "global")), run()
    (asked,) = {frozenset(x["client"] for x in played.lines if x["round"] == t and "pre" in x) for t in (1, 2, 3, 4)}
    last: dict[int, int] = {}
    for row, other in zip(played.rows, whole.rows, strict=True):
        assert row["clients"] == other["clients"]
        assert row["post"] == other["post"]
        last |= dict.fromkeys(row["clients"], row["round"])
        assert row["pre"]["clients"] == row["global"]["clients"] == row["stale"]["clients"] == len(asked) == 2
        assert row["stale"]["untrained"] == len(asked - {*last})
        wanted = [0.5 + last[c] / 10 if c in last else row["round"] / 10 for c in asked]
        assert row["stale"]["accuracy"] == pytest.approx(np.mean(wanted))


def test_no_moments_measure_nothing() -> None:
    played = run(moments=())
    assert all(not {"pre", "post", "stale", "global"} & row.keys() for row in played.rows)
    assert [line["client"] for line in played.lines] == [c for row in played.rows for c in row["clients"]]


def test_traffic_of_training_and_of_evaluation_are_counted_apart() -> None:
    network = 4 * 4  # two weights and two biases
    for row in run(moments=("pre", "post", "global")).rows:
        assert row["bytes_down"] == 4
        assert row["bytes_up"] == 8
        assert row["bytes_evaluation"] == CLIENTS * 4 + CLIENTS * network


def test_each_trained_client_has_its_own_traffic_and_samples() -> None:
    played = run()
    trained = [line for line in played.lines if "bytes_up" in line]
    assert [(line["round"], line["client"]) for line in trained] == [(r["round"], *r["clients"]) for r in played.rows]
    assert {(line["bytes_up"], line["bytes_down"]) for line in trained} == {(8, 4)}
