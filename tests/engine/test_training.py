"""Settings that a client's training must follow: learning rate, validation, own networks, randomness."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from bench_of_tests import even_federation, federation, play, prepare
from torch import nn

from headwise.app import registry
from headwise.contract.averaging import Averaging, Shared
from headwise.contract.benches import Local
from headwise.contract.method import Update
from headwise.errors import ClientError
from headwise.methods.fedavg import FedAvg
from headwise.methods.fedper import FedPer
from headwise.methods.lg_fedavg import LGFedAvg
from headwise.methods.standalone import Standalone
from headwise.models.mlp import MLP
from headwise.models.split import SplitModel
from headwise.records import Nothing, same
from headwise.settings.names import list_names
from headwise.settings.options import Sampling, Stop, Train

RATES: list[tuple[int, float]] = []


@dataclass(frozen=True)
class Telling(Averaging[Nothing]):
    """FedAvg that reports its learning rate, and fails on request."""

    fails_in: int = 0
    phase: str = "fit"

    def client_init(self, local: Local) -> Nothing:
        return Nothing()

    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Shared, Nothing]:
        RATES.append((local.t, local.lr))
        if self.phase == "fit" and local.t == self.fails_in:
            raise ZeroDivisionError("by\nhand")
        m = local.model(down.w)
        local.sgd(m)
        return Update(Shared(m.params()), me, m)

    def personalize(self, me: Nothing, down: Shared, local: Local) -> SplitModel:
        if self.phase == "pre" and local.t == self.fails_in:
            raise ZeroDivisionError("by hand")
        return local.model(down.w)


@pytest.fixture
def rates() -> list[tuple[int, float]]:
    RATES.clear()
    return RATES


def test_the_learning_rate_decays_by_the_round(rates: list[tuple[int, float]]) -> None:
    play(prepare(Telling(), even_federation(2), train=Train(lr=0.4, lr_decay=0.5), rounds=4))
    assert rates == [(t, 0.4 * 0.5 ** (t - 1)) for t in (1, 2, 3, 4) for _ in range(2)]


def test_the_learning_rate_decays_by_participation(rates: list[tuple[int, float]]) -> None:
    train = Train(lr=0.4, lr_decay=0.5, lr_decay_per="participation")
    played = play(prepare(Telling(), even_federation(4), train=train, sampling=Sampling(0.5), rounds=5))
    times = dict.fromkeys(range(4), 0)
    wanted: list[tuple[int, float]] = []
    for row in played.rows:
        for c in row["clients"]:
            wanted.append((row["round"], 0.4 * 0.5 ** times[c]))
            times[c] += 1
    assert rates == wanted
    assert len(set(times.values())) > 1, "the draw must be uneven, or this tests too little"


def test_without_decay_the_rate_stays(rates: list[tuple[int, float]]) -> None:
    play(prepare(Telling(), even_federation(2), train=Train(lr=0.3)))
    assert {rate for _, rate in rates} == {0.3}


@pytest.mark.parametrize("phase", ["fit", "pre"])
def test_a_client_that_fails_is_named_with_method_round_and_phase(phase: str) -> None:
    words = rf"Telling failed at client 0 in round 2 \({phase}, test_training.py, line \d+\): ZeroDivisionError: by"
    with pytest.raises(ClientError, match=words):
        play(prepare(Telling(fails_in=2, phase=phase), even_federation(3)))


def test_validation_samples_are_judged_apart() -> None:
    data = federation([([0, 1, 2] * 3, [0] * n, [1, 2]) for n in (0, 1, 6)])
    played = play(prepare(FedAvg(), data))
    for t, row in enumerate(played.rows, 1):
        scores = [line["pre"]["val"] for line in played.lines if line["round"] == t]
        assert scores[0] is None
        assert [s["n"] for s in scores[1:]] == [1, 6]
        assert row["pre"]["val_accuracy"] == pytest.approx((scores[1]["accuracy"] + 6 * scores[2]["accuracy"]) / 7)
    assert "val_accuracy" not in play(prepare(FedAvg(), even_federation())).rows[0]["pre"]


@pytest.mark.parametrize("name", list_names("method"))
def test_no_method_learns_from_validation_samples(name: str) -> None:
    """They choose settings, methods and rounds: whoever learned from them would look too good."""
    ends = []
    for labels in ([0, 1, 2], [2, 2, 0]):
        data = federation([([0, 1, 2] * 3, labels, [0, 1, 2] * 2)] * 2)
        played = play(prepare(registry.find("method", name)(), data, rounds=2))
        scores = [line[moment]["test"] for line in played.lines for moment in ("pre", "post")]
        ends.append((played.ended[-1].progress.server, scores))
    assert same(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1]


def test_patience_waits_for_the_best_evaluation_on_validation_samples() -> None:
    train = Train(lr=1e-12)  # nothing is learned, so the first evaluation stays the best
    played = play(prepare(FedAvg(), even_federation(validation=1), train=train, rounds=9, stop=Stop(patience=3)))
    assert played.reason == "patience"
    assert len(played.rows) == 4


def _networks() -> list[SplitModel]:
    task = even_federation().task
    return [MLP(hidden=6).build(task), MLP(hidden=6, layers=2).build(task)]


def test_clients_may_have_different_networks_with_one_head() -> None:
    played = play(prepare(LGFedAvg(), even_federation(5), _networks()))
    states = played.ended[-1].states
    sizes = [sum(t.numel() for t in states[c].me.phi.values()) for c in range(5)]  # type: ignore[attr-defined]
    assert sizes == [30, 72, 30, 72, 30]
    assert {line["bytes_up"] for line in played.lines} == {4 * (6 * 3 + 3)}


def test_alone_with_different_networks_nothing_is_sent() -> None:
    played = play(prepare(Standalone(), even_federation(4), _networks()))
    assert {(row["bytes_up"], row["bytes_down"], row["bytes_evaluation"]) for row in played.rows} == {(0, 0, 0)}
    assert played.rows[-1]["stale"] == {**played.rows[-1]["post"], "untrained": 0}


def _dropout(p: float) -> SplitModel:
    torch.manual_seed(1)
    return SplitModel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(p)), nn.Linear(8, 3))


def test_dropout_follows_the_client_and_round_and_leaves_torch_alone() -> None:
    found = []
    for noise in (1, 2):
        plan = prepare(FedPer(), even_federation(), [_dropout(0.5)])
        torch.manual_seed(noise)
        before = torch.get_rng_state()
        found.append(play(plan))
        assert torch.equal(before, torch.get_rng_state())
    assert found[0].rows == found[1].rows
    assert same(found[0].ended[-1].progress.server, found[1].ended[-1].progress.server)
    without = play(prepare(FedPer(), even_federation(), [_dropout(0.0)]))
    assert not same(found[0].ended[-1].progress.server, without.ended[-1].progress.server), "dropout must do something"


def test_measuring_changes_nothing_that_is_learned() -> None:
    servers = []
    for moments in ((), ("pre",), ("pre", "post", "global")):
        plan = prepare(FedAvg(), even_federation(), [_dropout(0.5)])
        object.__setattr__(plan, "evaluate", type(plan.experiment.evaluate)(moments=moments))
        servers.append(play(plan).ended[-1].progress.server)
    assert same(servers[0], servers[1])
    assert same(servers[0], servers[2])


def test_the_seed_decides() -> None:
    rows = [play(prepare(FedAvg(), even_federation(), seed=s)).rows for s in (0, 0, 1)]
    assert rows[0] == rows[1]
    assert rows[0] != rows[2]
