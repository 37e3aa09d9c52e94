"""How the diagnostics of methods are stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import headwise as hw
from headwise.contract.averaging import Shared
from headwise.contract.method import record_types
from headwise.engine.client.state import ClientState
from headwise.engine.events import Event, Progress, RoundEnded, RunStarted
from headwise.methods.fedafk import FedAFK, Own
from headwise.methods.fedah import FedAH
from headwise.methods.fedgmh import FedGMH, Heads
from headwise.params import Params
from headwise.runs.checkpoint import Checkpoints
from headwise.runs.store import Diagnostics
from small_runs import experiment

SHOWN = {
    "fedah": {"W": ["client", "class", "feature"]},
    "fedafk": {"mu": ["client"]},
    "apfl": {"alpha": ["client"]},
    "fedfomo": {"P": ["client", "client"]},
    "fedgmh": {"psi": ["client", "class", "feature"], "h_s": ["label", "class", "feature"]},
}


@pytest.mark.parametrize("method", SHOWN)
def test_methods_show_what_they_learned(method: str, tmp_path: Path) -> None:
    run = hw.run(experiment(rounds=3, method=method, evaluate={"every": 2}), tmp_path / "run")
    rows = run.diagnostics
    assert [row["round"] for row in rows] == [2, 3], "at evaluations"
    wanted = {k.replace("h_s", "heads"): v for k, v in SHOWN[method].items()}
    assert {name: q["axes"] for name, q in rows[-1]["quantities"].items()} == wanted
    for q in rows[-1]["quantities"].values():
        values = torch.tensor(q["values"])
        assert values.dim() == len(q["axes"])
        assert len(values) == len(q["ids"])
        assert values.isfinite().all()


def test_they_are_the_numbers_in_the_states(tmp_path: Path) -> None:
    run = hw.run(experiment(rounds=2, method="fedah"), tmp_path / "run")
    checkpoint = Checkpoints(run.path / "checkpoint", record_types(FedAH)).load()
    assert checkpoint is not None
    shown: Any = run.diagnostics[-1]["quantities"]["W"]
    assert shown["ids"] == sorted(checkpoint.states)
    for c, matrix in zip(shown["ids"], shown["values"], strict=True):
        own: Any = checkpoint.states[c].me
        assert torch.tensor(matrix) == pytest.approx(own.W["head.weight"], abs=1e-4)


def test_a_head_that_is_a_convolution_is_shown_too(tmp_path: Path) -> None:
    run = hw.run(
        hw.Experiment(method="fedah", data="shapes", partition="natural", model="fcn", rounds=1), tmp_path / "run"
    )
    shown = torch.tensor(run.diagnostics[-1]["quantities"]["W"]["values"])
    assert shown.dim() == 3, "client, class, feature"


def test_a_method_that_shows_nothing_writes_nothing(tmp_path: Path) -> None:
    run = hw.run(experiment(rounds=1), tmp_path / "run")
    assert not (run.path / "diagnostics.jsonl").exists()
    assert run.diagnostics == []


def ended(t: int, server: Any, states: dict[int, Any]) -> Event:
    kept = {c: ClientState(me, Params(), 1) for c, me in states.items()}
    return RoundEnded({"round": t, "bytes_evaluation": 0}, [], Progress(t, server, {}), kept, ())


def test_large_quantities_are_stored_small(tmp_path: Path) -> None:
    head = Params({"head.weight": torch.rand(100, 2048), "head.bias": torch.rand(100)})
    Diagnostics(tmp_path, FedGMH())(ended(1, Heads(dict.fromkeys(range(100), head)), {}))
    [line] = (tmp_path / "diagnostics.jsonl").read_text().splitlines()
    assert len(line) < 64 * 1024
    found = json.loads(line)["quantities"]["heads"]
    assert (found["ids"][0], len(found["values"][0]), len(found["values"][0][0])) == (0, 100, 32)
    assert found["values"][0][0][0] == pytest.approx(head["head.weight"][0, :64].mean().item(), abs=1e-4)


def test_of_very_many_clients_some_are_looked_at(tmp_path: Path) -> None:
    states = dict.fromkeys(range(1200), Own(Params(), Params(), torch.tensor(0.5)))
    Diagnostics(tmp_path, FedAFK())(ended(1, Shared(Params()), states))
    found = json.loads((tmp_path / "diagnostics.jsonl").read_text())["quantities"]["mu"]
    assert found["ids"] == list(range(0, 1200, 3))
    assert found["values"] == [0.5] * 400


def test_rounds_that_are_run_again_are_not_there_twice(tmp_path: Path) -> None:
    head = Params({"head.weight": torch.rand(2, 2)})
    see = Diagnostics(tmp_path, FedGMH())
    for t in (1, 2, 3):
        see(ended(t, Heads({0: head}), {}))
    with (tmp_path / "diagnostics.jsonl").open("a") as file:
        file.write('{"round": 4, "quan')
    see(RunStarted(9, 5, 2))
    see(ended(3, Heads({0: head}), {}))
    rounds = [json.loads(line)["round"] for line in (tmp_path / "diagnostics.jsonl").read_text().splitlines()]
    assert rounds == [1, 2, 3]
