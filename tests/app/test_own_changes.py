"""`train.augment` with a user's own functions: by reference, by file, or as objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import own_changes
import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise.app import inputs
from headwise.errors import ConfigError, HeadwiseError, RunError
from headwise.sites.facts import resolve_for_sites
from same_runs import rows, stop

RNG = np.random.default_rng(0)
CLIENTS = {name: (RNG.normal(size=(20, 3)).astype(np.float32), np.arange(20) % 2) for name in ("va", "rome", "oslo")}
HOME = Path(__file__).parent


def fitted(out: Path, augment: Any, **settings: Any) -> hw.Run:
    usual: dict[str, Any] = {"rounds": 2, "method": "fedper", "workers": 1}
    return hw.fit(CLIENTS, out=out, train={"augment": augment}, **{**usual, **settings})


def test_by_reference_by_file_and_as_an_object(tmp_path: Path) -> None:
    plain, run = fitted(tmp_path / "plain", []), fitted(tmp_path / "run", ["own_changes:noisy"])
    assert rows(run) != rows(plain)
    assert run.manifest["experiment"]["train"]["augment"] == ["own_changes:noisy"]
    assert rows(fitted(tmp_path / "object", [own_changes.noisy])) == rows(run)
    file = fitted(tmp_path / "file", [f"{HOME}/own_changes.py:noisy"])
    assert rows(file) == rows(run)


def test_samples_stay_as_they_are_and_targets_can_change(tmp_path: Path) -> None:
    """A function that changes its batch in place sees fresh samples each time."""
    swapped = fitted(tmp_path / "swapped", [own_changes.mixed], rounds=3)
    again = fitted(tmp_path / "again", [own_changes.mixed], rounds=3)
    assert rows(swapped) == rows(again)


@pytest.mark.slow
def test_any_number_of_workers_gives_the_same_bits(tmp_path: Path) -> None:
    names = ["own_changes:noisy", "own_changes:mixed"]
    runs = [fitted(tmp_path / str(n), names, workers=n) for n in (1, 2, "threads:2")]
    assert rows(runs[0]) == rows(runs[1]) == rows(runs[2])


def mine(x: Tensor, rng: torch.Generator) -> Tensor:
    return own_changes.noisy(x, rng)


mine.__module__ = "__main__"  # as in a notebook


def test_a_function_of_a_notebook_is_passed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fitted(tmp_path / "whole", [mine], workers="auto")
    assert rows(whole) == rows(fitted(tmp_path / "known", ["own_changes:noisy"]))
    with pytest.raises(KeyboardInterrupt):
        fitted(tmp_path / "cut", [mine], observers=[stop])
    monkeypatch.setattr(inputs, "_OBJECTS", {})  # another session
    with pytest.raises(RunError) as error:
        hw.resume(tmp_path / "cut")
    assert str(error.value) == (
        f"{tmp_path / 'cut'} uses mine, defined in a notebook or script: pass it again, as in "
        f"headwise.resume('{tmp_path / 'cut'}', augment=mine)."
    )
    assert rows(hw.resume(tmp_path / "cut", augment=mine)) == rows(whole)
    with pytest.raises(HeadwiseError, match=r"train.augment is mine, defined in a notebook or script, where other"):
        fitted(tmp_path / "two", [mine], workers=2)


def test_a_session_has_its_own_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To resume, and where a method trains to make a model; in another session, only that needs them."""
    known = fitted(tmp_path / "known", ["own_changes:noisy"], method="fedavg-ft")
    with pytest.raises(KeyboardInterrupt):
        fitted(tmp_path / "cut", [mine], method="fedavg-ft", observers=[stop])
    run, x = hw.resume(tmp_path / "cut"), CLIENTS["va"][0]
    found = known.model("va").predict_proba(x)
    assert np.array_equal(run.model("va").predict_proba(x), found)
    monkeypatch.setattr(inputs, "_OBJECTS", {})  # another session
    assert hw.Run(run.path).global_model().predict(x).shape == (20,)
    with pytest.raises(HeadwiseError, match=r"train.augment is mine, defined in .*resume\(folder, augment=mine\)\.$"):
        hw.Run(run.path).model("va")
    assert np.array_equal(hw.resume(run.path, augment=mine).model("va").predict_proba(x), found)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("flipp", "train.augment[0] is 'flipp': did you mean 'flip'?"),
        (3, "train.augment[0] is a int, but must be flip, crop, erase or a function."),
        ("own_changes:none", "train.augment is 'own_changes:none', but own_changes has no function or class 'none'."),
        ("no_module:f", "train.augment is 'no_module:f', but there is no module 'no_module'."),
        (own_changes.longer, "which returned x as torch.float32 of shape [16, 3], but must return torch.float32 of "
         "shape [8, 3], as it was given."),
        (own_changes.a_list, "which returned x as a list, but must return"),
        (own_changes.broken, "train.augment is 'own_changes:broken', which failed on a batch: ZeroDivisionError: oh."),
        (own_changes.careless, "which returns another batch when called again: draw only from the generator that it "
         "gets."),
    ],
)  # fmt: skip
def test_a_bad_function_is_one_sentence(tmp_path: Path, name: Any, said: str) -> None:
    with pytest.raises(HeadwiseError) as error:
        fitted(tmp_path / "run", [name])
    assert said in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_sites_run_no_such_function() -> None:
    asked = hw.Experiment(data="own", clients=2, train={"augment": ["own_changes:noisy"]})
    with pytest.raises(ConfigError, match=r"train.augment is 'own_changes:noisy', but sites only run what their own"):
        resolve_for_sites(asked)
