"""Labels that change in the middle of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headwise as hw
from headwise.engine.client.client_bench import ClientBench
from headwise.engine.plan import Plan
from headwise.engine.server_bench import ServerBench
from headwise.errors import ConfigError
from headwise.methods.fedgmh import FedGMH
from headwise.params import Params
from headwise.settings.experiment import experiment_from
from headwise.settings.options import Drift
from headwise.testing.toy import EASY, federation, play, toy_plan

T = 3


def plan(what: Any, clients: tuple[int, ...] = (1,), **more: Any) -> Plan:
    """Client 1 has the classes 1, 2 and 3, eight samples of each."""
    drift = Drift(T, what, clients=clients, **more)
    return toy_plan(FedGMH(), data=federation(EASY), rounds=4, every=1).with_settings(drift=drift)


def labels(plan: Plan, t: int, c: int = 1) -> list[int]:
    return plan.client(c, t).train.y.tolist()


def test_swap_exchanges_the_labels_of_two_classes_in_all_parts() -> None:
    p = plan("swap")
    before, after = labels(p, T - 1), labels(p, T)
    assert before == p.data.client(1).train.y.tolist()
    pairs = {(a, b) for a, b in zip(before, after, strict=True) if a != b}
    moved = {a for pair in pairs for a in pair}
    assert len(moved) == 2
    assert 1 in moved, "the most frequent class; of equals, the first"
    test = zip(p.data.client(1).test.y.tolist(), p.client(1, T).test.y.tolist(), strict=True)
    assert {(a, b) for a, b in test if a != b} <= pairs
    assert len(p.client(1, T).train.x) == len(before)


def test_vanish_and_appear_remove_the_second_class_before_or_after() -> None:
    gone, come = plan("vanish"), plan("appear")
    assert set(labels(gone, T - 1)) == set(labels(come, T)) == {1, 2, 3}
    assert set(labels(gone, T)) == set(labels(come, T - 1)) == {1, 3}
    assert set(gone.client(1, T).test.y.tolist()) == {1, 3}
    assert len(gone.client(1, T).train.x) == 16


def test_the_server_learns_of_it_and_the_others_keep_theirs() -> None:
    p = plan("vanish")
    assert ServerBench(p, T - 1).labels(1) == (1, 2, 3)
    assert ServerBench(p, T).labels(1) == (1, 3)
    assert (ServerBench(p, T - 1).size(1), ServerBench(p, T).size(1)) == (24, 16)
    assert labels(p, T, c=0) == p.data.client(0).train.y.tolist()
    local = ClientBench(p, 1, T, purpose="fit", kept=Params(), trained=0)
    assert (local.n, local.class_counts.tolist()) == (16, [0, 8, 0, 8])


def test_a_share_of_the_clients_is_drawn_from_the_seed() -> None:
    found = [plan("swap", (), share=0.5).with_settings(seed=s).drifting for s in range(10)]
    assert {len(who) for who in found} == {2}
    assert len(set(found)) > 1


def test_until_then_nothing_differs_and_from_then_on_only_what_the_change_reaches() -> None:
    p = plan("swap")
    with_it, without = play(p).ended, play(p.with_settings(drift=Drift())).ended
    rows = [(a.clients == b.clients) for a, b in zip(with_it, without, strict=True)]
    assert rows == [True, True, False, False]


def test_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"data": "synthetic:160:4:6:sites=2", "partition": "dirichlet:0.5", "model": "mlp:6"}
    asked |= {"method": "fedgmh", "clients": 5, "rounds": 3, "drift": {"round": 2, "what": "vanish"}}
    whole = hw.run(experiment_from({**asked, "engine": {"workers": 2}}), tmp_path / "whole")
    run = hw.run(experiment_from({**asked, "stop": {"budget": 1e-9}}), tmp_path / "parts")
    while not run.complete:
        run = hw.resume(run.path)
    assert [row.get("pre") for row in run.rounds] == [row.get("pre") for row in whole.rounds]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"drift": {"round": 60}}, "drift.round is 60, but the run has only 50 rounds"),
        ({"drift": {"round": 2, "clients": [20]}}, "drift.clients has 20, but the clients are 0 to 19"),
        ({"drift": {"round": 2, "what": "change"}}, "drift.what is 'change'"),
        ({"drift": {"round": 2}, "privacy": {"clip": 1.0}}, "drift.round is set, but epsilon"),
        ({"drift": {"round": 2}, "engine": {"kind": "flower-sim"}}, "drift.round is set, but engine.kind"),
        ({"evaluate": {"new_clients": 1.0}}, "none of the 20 clients is left to train"),
        ({"evaluate": {"new_clients": -0.1}}, "evaluate.new_clients is -0.1"),
    ],
)
def test_what_makes_no_sense_gets_a_sentence(settings: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=sentence.replace(".", r"\.")):
        hw.run(experiment_from({"data": "digits", **settings}), tmp_path / "out")
    assert not (tmp_path / "out").exists()
