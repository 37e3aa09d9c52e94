"""Runs that go on from a finished one: `headwise run --from`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headwise as hw
from headwise.app.continue_from import continue_from, settings_after, start_states
from headwise.app.launch import run_or_resume
from headwise.app.prepare import prepare, renumber
from headwise.data.splits import Parts
from headwise.engine.events import Event, RoundEnded
from headwise.errors import ConfigError, RunError
from headwise.records import encode
from small_runs import experiment

GROWING = ["fedfomo", "fd", "fedkd", "apple", "fedftha", "fedcac", "clusterfl"]
"""methods whose servers or clients keep something for each client"""


def go(asked: hw.Experiment, folder: Path) -> tuple[hw.Run, bytes]:
    """The run, and its server's last state."""
    last: list[bytes] = []

    def watch(event: Event) -> None:
        if isinstance(event, RoundEnded):
            last.append(encode(event.progress.server))

    run = hw.run(asked, folder, observers=[watch])
    return run, last[-1]


def after(folder: Path, **changes: Any) -> hw.Experiment:
    return continue_from({**settings_after(folder), **changes})


def measured(rows: Any) -> list[Any]:
    return [(row["clients"], row["pre"], row["post"]) for row in rows]


@pytest.mark.parametrize("method", ["fedper", "fedgmh", "scaffold"])
def test_two_rounds_and_then_two_more_are_four(method: str, tmp_path: Path) -> None:
    asked = experiment(4, method=method, train={"lr_decay": 0.9})
    whole, server = go(asked, tmp_path / "whole")
    go(experiment(2, method=method, train={"lr_decay": 0.9}), tmp_path / "first")
    second, also = go(after(tmp_path / "first"), tmp_path / "second")
    assert also == server
    assert measured(second.rounds) == measured(whole.rounds[2:])
    assert [row["round"] for row in second.rounds] == [1, 2]
    origin = second.manifest["experiment"]["origin"]
    assert (origin["run"], origin["rounds"], len(origin["hash"])) == (str(tmp_path / "first"), 2, 64)


def test_it_resumes_with_the_same_bits_even_without_the_first_run(tmp_path: Path) -> None:
    go(experiment(2), tmp_path / "first")
    asked = after(tmp_path / "first", rounds=3)
    whole, _ = go(asked, tmp_path / "whole")
    for budget, done in ((1e-9, 1), (1e-9, 2), (100.0, 3)):
        part = hw.Experiment(**{**vars(asked), "stop": {"budget": budget}})
        if done == 1:
            run = hw.run(part, tmp_path / "parts")
            (tmp_path / "first").rename(tmp_path / "elsewhere")
        else:
            text = json.loads((tmp_path / "parts" / "manifest.json").read_text())
            run = hw.resume(tmp_path / "parts")
            assert text["experiment"]["origin"]["hash"] == asked.origin.hash
        assert len(run.rounds) == done
    assert measured(run.rounds) == measured(whole.rounds)


@pytest.mark.parametrize("method", GROWING)
@pytest.mark.parametrize("clients", [3, 7])
def test_clients_may_come_and_go(method: str, clients: int, tmp_path: Path) -> None:
    """By number, where there are no names: those that left keep their number, and have no samples."""
    small = {"rounds": 2, "sampling": {"ratio": 1.0}, "evaluate": {"every": 2}}
    go(experiment(**small, method=method), tmp_path / "first")
    run, _ = go(after(tmp_path / "first", clients=clients), tmp_path / "second")
    assert run.rounds[-1].get("clients") == list(range(clients))
    assert run.manifest["experiment"]["clients"] == max(5, clients)
    assert run_or_resume(after(tmp_path / "first", clients=clients), tmp_path / "second").complete


def test_named_clients_keep_their_numbers() -> None:
    parts = [Parts(*[np.array([k])] * 3) for k in range(3)]
    found, names, left = renumber(parts, ["basel", "cleveland", "va"], ["va", "long beach", "cleveland"])
    assert list(names) == ["va", "long beach", "cleveland", "basel"]
    assert [p.train.tolist() for p in found if len(p.train)] == [[2], [1], [0]]
    assert left == {1}


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    go(experiment(2), tmp_path / "first")
    for changes, sentence in (
        ({"seed": 1}, "seed differs from that of .*, but"),
        ({"method": "fedavg"}, "method differs from that of .*, but"),
        ({"model": "mlp:7"}, "model differs from that of .*, but"),
        ({"privacy": {"clip": 1.0}}, r"privacy\.clip is set"),
        ({"evaluate": {"new_clients": 0.2}}, r"evaluate\.new_clients is 0\.2"),
        ({"engine": {"kind": "flower-sim"}}, r"engine\.kind has sites"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            after(tmp_path / "first", **changes)
    for data, sentence in (
        ("synthetic:160:4:9:sites=2", "has body.* of shape .*, but this data needs"),
        ("synthetic:160:3:6:sites=2", "was trained on the classes .* but the data has"),
    ):
        with pytest.raises(RunError, match=sentence):
            hw.run(after(tmp_path / "first", data=data), tmp_path / "second")
        assert not (tmp_path / "second").exists()


def test_only_finished_and_unchanged_runs_go_on(tmp_path: Path) -> None:
    hw.run(experiment(3, stop={"budget": 1e-9}), tmp_path / "short")
    with pytest.raises(RunError, match=r"has not ended .*: finish it with headwise resume"):
        after(tmp_path / "short")
    with pytest.raises(RunError, match="is not the folder of a run: there is no such folder"):
        after(tmp_path / "nothing")
    hw.run(experiment(2), tmp_path / "first")
    asked = after(tmp_path / "first")
    strange = hw.Experiment(**{**vars(asked), "origin": {**vars(asked.origin), "hash": "0"}})
    found = prepare(strange, tmp_path)
    with pytest.raises(RunError, match="has changed since this run was set up"):
        start_states(found.plan, found.histograms["classes"])
