"""Runs continue in Python as on the command line: `run.resume(rounds)` and `hw.fit(..., start=run)`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import own_nets
import pytest

import headwise as hw
from headwise.app import fit as fit_module
from headwise.errors import ConfigError, RunError

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 3))
Y = (X[:, 0] > 0).astype(int)
CLIENTS: dict[str, Any] = {"va": (X, Y), "rome": (-X, Y)}


def probabilities(run: hw.Run) -> Any:
    return run.model("va").predict_proba(X)


@pytest.mark.parametrize("model", [None, own_nets.Small(2), lambda: own_nets.Small(2)], ids=["mlp", "object", "lambda"])
def test_three_rounds_and_three_more_are_six(tmp_path: Path, model: Any) -> None:
    options: dict[str, Any] = {"model": model, "method": "fedah", "lr": 0.1, "quiet": True}
    six = probabilities(hw.fit(CLIENTS, rounds=6, out=tmp_path / "six", **options))
    three = hw.fit(CLIENTS, rounds=3, out=tmp_path / "three", **options)
    more = three.resume(3, out=tmp_path / "more")
    again = hw.fit(CLIENTS, start=three, rounds=3, out=tmp_path / "again", quiet=True)
    assert not np.array_equal(probabilities(three), six)
    np.testing.assert_array_equal(probabilities(more), six)
    np.testing.assert_array_equal(probabilities(again), six)
    assert again.method == "fedah"


def test_settings_and_clients_may_change(tmp_path: Path) -> None:
    before = hw.fit(CLIENTS, rounds=1, out=tmp_path / "before", lr=0.1, train={"momentum": 0.5})
    after = hw.fit({**CLIENTS, "oslo": (X, Y)}, start=tmp_path / "before", rounds=1, out=tmp_path / "after", lr=0.02)
    assert after.names == ("va", "rome", "oslo")
    train = after.manifest["experiment"]["train"]
    assert (train["lr"], train["momentum"]) == (0.02, 0.5)
    assert before.resume(1, out=tmp_path / "more", lr=0.03).manifest["experiment"]["train"]["lr"] == 0.03


def test_an_interrupted_run_is_finished(tmp_path: Path) -> None:
    def interrupt(event: Any) -> None:
        if getattr(event, "row", {}).get("round") == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hw.fit(CLIENTS, rounds=3, out=tmp_path / "run", observers=[interrupt])
    run = hw.Run(tmp_path / "run")
    assert not run.complete
    with pytest.raises(RunError, match="has not ended"):
        run.resume(3, out=tmp_path / "more")
    assert run.resume().complete
    assert len(run.rounds) == 3


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda run, out: hw.fit(CLIENTS, start=run, method="fedavg", out=out), "method differs from that of .*, but"),
        (lambda run, out: hw.fit(CLIENTS, start=run, seed=3, out=out), "seed differs from that of .*, but"),
        (lambda run, out: hw.fit(CLIENTS, start=out / "none", out=out), "there is no such folder"),
        (lambda run, out: run.resume(0, out=out), "rounds is 0, but must be from 1"),
        (lambda run, out: run.resume(lr=0.1), "rounds is missing"),
        (
            lambda run, out: run.resume(2, out=out, split="6:2:2"),
            "split is a setting of the data, which can't change here",
        ),
        (lambda run, out: run.resume(2, out=out, random_state=1), "random_state is not a setting: did you mean 'seed'"),
        (lambda run, out: hw.fit(CLIENTS, n_jobs=2, out=out), "n_jobs is not a setting: did you mean 'workers'"),
    ],
)
def test_mistakes_are_named_and_leave_nothing(
    tmp_path: Path, change: Callable[[hw.Run, Path], Any], problem: str
) -> None:
    run = hw.fit(CLIENTS, rounds=1, method="fedah", out=tmp_path / "run")
    with pytest.raises((ConfigError, RunError), match=problem):
        change(run, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_progress_is_one_line_where_somebody_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hw.fit(CLIENTS, rounds=2, out=tmp_path / "log")
    assert "round 2 of 2" not in capsys.readouterr().err
    monkeypatch.setattr(fit_module, "is_watched", lambda: True)
    hw.fit(CLIENTS, rounds=2, out=tmp_path / "notebook")
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert [text.split("]")[1].split(",")[0].strip() for text in err.split("\r")[1:]] == [
        f"round {t} of 2" for t in range(3)
    ]
    assert "accuracy" in err.split("\r")[-1]
    hw.fit(CLIENTS, rounds=2, out=tmp_path / "quiet", quiet=True)
    assert capsys.readouterr().err == ""
