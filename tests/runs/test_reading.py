"""Reading runs: numbers match those computed by hand, and torch is not imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headwise as hw
from headwise.disk.files import append_lines
from headwise.disk.jsontext import to_json
from headwise.errors import RunError
from headwise.runs.query import find_runs
from small_runs import experiment

REST = {"client_mean": 0.1, "client_std": 0.2, "worst_decile": 0.3, "balanced": 0.4, "f1": 0.5, "loss": 0.6}
CURVE = [0.1, 0.5, 0.3, 0.8, 0.2, 0.8, 0.4, 0.6, 0.7, 0.5, 0.6, 0.3]
VALIDATION = [0.1, 0.2, 0.9, 0.3, 0.9, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]

EXPERIMENT = {
    **hw.Experiment(clients=3, seed=7).to_plain(),
    **{k: {"name": k} for k in ("method", "data", "partition")},
}


def write(folder: Path, rounds: list[dict[str, Any]], **manifest: Any) -> hw.Run:
    """A handwritten run folder."""
    usual = {
        "format": 1,
        "experiment": EXPERIMENT,
        "partition": {"hash": "", "floor": {"weighted": 0.25}},
        "data_dir": "/",
        "hardware": {"cpu": "", "kernels": ""},
        "versions": {"torch": ""},
    }
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps({**usual, **manifest}))
    (folder / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rounds))
    return hw.Run(folder)


def row(t: int, accuracy: float, **more: Any) -> dict[str, Any]:
    sent = {
        "bytes_up": 10,
        "bytes_down": 20,
        "bytes_evaluation": 5,
        "seconds": {"train": 1.0, "round": 1.5, "workers": {}},
    }
    return {"round": t, **sent, "pre": {"accuracy": accuracy, **REST, **more}}


def test_the_summary_is_what_one_finds_by_hand(tmp_path: Path) -> None:
    run = write(tmp_path / "run", [row(t, a) for t, a in enumerate(CURVE, 1)])
    found = run.summary()
    assert found["accuracy"] == {
        "pre": {"last": 0.3, "best": 0.8, "best_round": 4, "last_ten": pytest.approx(5.2 / 10), **REST}
    }
    assert (found["rounds"], found["clients"], found["seed"], found["floor"]) == (12, 3, 7, 0.25)
    assert (found["bytes_up"], found["bytes_down"], found["bytes_evaluation"]) == (120, 240, 60)
    assert found["seconds"] == pytest.approx(18)
    assert (found["method"], found["data"], found["run"]) == ("method", "data", str(run.path))
    assert run.accuracy() == 0.3


def test_the_round_chosen_on_validation_samples_is_the_first_of_the_best(tmp_path: Path) -> None:
    both = zip(CURVE, VALIDATION, strict=True)
    run = write(tmp_path / "run", [row(t, a, val_accuracy=v) for t, (a, v) in enumerate(both, 1)])
    found = run.summary()["accuracy"]["pre"]
    assert (found["selected"], found["selected_round"]) == (0.3, 3)


def test_rounds_without_evaluation_count_for_traffic_only(tmp_path: Path) -> None:
    rounds = [row(t, a) for t, a in enumerate([0.1, 0.9, 0.2, 0.4], 1)]
    for t in (0, 2):
        del rounds[t]["pre"], rounds[t]["bytes_evaluation"]
    rounds[3]["global"] = {"clients": 0, "samples": 0}  # measured on nobody
    found = write(tmp_path / "run", rounds).summary()
    assert found["accuracy"]["pre"]["best_round"] == 2
    assert found["accuracy"]["pre"]["last_ten"] == pytest.approx(0.65)
    assert list(found["accuracy"]) == ["pre"]
    assert (found["bytes_up"], found["bytes_evaluation"]) == (40, 10)


def test_a_run_without_rounds_is_empty_but_no_error(tmp_path: Path) -> None:
    run = write(tmp_path / "run", [])
    assert run.summary()["accuracy"] == {}
    assert run.ended == "unfinished"
    with pytest.raises(RunError, match="has no accuracy at the moment 'post'"):
        run.accuracy("post")


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    run = write(tmp_path / "run", [row(1, 0.5)])
    path = run.path / "rounds.jsonl"
    path.write_bytes(b'{"round": 1\n' + path.read_bytes())
    with pytest.raises(RunError, match=r"rounds\.jsonl is damaged at line 1"):
        _ = run.rounds


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": 2}, r"is in format 2, but Headwise \S+ reads format 1\."),
        ({"format": 0}, r"is in format 0, but Headwise \S+ reads format 1\."),
        ({"format": "1"}, "is damaged: its format is '1'"),
        ({"format": True}, "is damaged: its format is True"),
        ({"experiment": None}, "is damaged: its experiment is None"),
        ({"partition": 3}, "is damaged: its partition is 3"),
        ({"partition": {"floor": {}}}, "is damaged: its partition.hash is missing"),
        ({"partition": {"hash": "", "floor": {}}}, "is damaged: its partition.floor.weighted is missing"),
        ({"experiment": {}}, "is damaged: its experiment.method is missing"),
        ({"experiment": {**EXPERIMENT, "seed": None}}, "is damaged: its experiment.seed is None"),
        ({"experiment": {**EXPERIMENT, "clients": True}}, "is damaged: its experiment.clients is True"),
        ({"data_dir": []}, r"is damaged: its data_dir is \[\]"),
    ],
)
def test_a_manifest_that_is_not_ours_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=words):
        _ = write(tmp_path / "run", [], **changes).manifest


@pytest.mark.parametrize(
    "line", ["5", "null", "[" * 100_000, '{"a":' * 100_000, "[" * 600 + "]" * 600, "{}", '{"round": 1e999}', "\0" * 9]
)
def test_a_line_that_is_no_round_is_named(line: str, tmp_path: Path) -> None:
    run = write(tmp_path / "run", [row(1, 0.5)])
    path = run.path / "rounds.jsonl"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(RunError, match=r"rounds\.jsonl is damaged at line 2: "):
        run.summary()


@pytest.mark.parametrize("name", ["manifest.json", "rounds.jsonl", "clients.jsonl", "result.json", "partition.json"])
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_what_is_no_file_can_not_be_read(name: str, make: Callable[[Path], None], tmp_path: Path) -> None:
    run = write(tmp_path / "run", [row(1, 0.5)])
    (run.path / "partition.json").write_text('{"train": [[1]], "val": [[0]], "test": [[1]]}')
    (run.path / name).unlink(missing_ok=True)
    make(run.path / name)
    with pytest.raises(RunError, match=rf"{name} can't be read: (Is a directory|it is not a regular file)"):
        run.check()


def test_runs_are_found_below_a_folder(tmp_path: Path) -> None:
    for name in ("b", "a/deep"):
        write(tmp_path / name, [])
    assert [run.path for run in find_runs(tmp_path)] == [tmp_path / "a/deep", tmp_path / "b"]
    assert find_runs(tmp_path / "nowhere") == []


def test_reading_takes_no_torch_and_no_numpy(undisturbed: Path) -> None:
    code = (
        "import sys, headwise as hw; run = hw.Run(sys.argv[1]); run.summary(); run.clients; print(run.accuracy(), "
        "run.ended, [m for m in ('torch', 'numpy', 'sklearn') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, undisturbed], capture_output=True, text=True, check=True)
    assert done.stdout == f"{hw.Run(undisturbed).accuracy()} finished []\n"


def test_the_manifest_says_all_that_a_run_depends_on(undisturbed: Path) -> None:
    manifest = hw.Run(undisturbed).manifest
    assert manifest["format"] == 1
    assert manifest["experiment"]["method"]["name"] == "fedper"
    assert manifest["experiment"]["partition"] == {"name": "dirichlet", "alpha": 0.5, "min_size": None, "balance": True}
    assert manifest["experiment"]["rounds"] == 5
    assert len(manifest["partition"]["hash"]) == 64
    assert manifest["partition"]["clients"] == 5
    assert {"torch", "numpy", "python"} <= manifest["versions"].keys()
    histograms = json.loads((undisturbed / "partition.json").read_bytes())
    assert sum(map(sum, histograms["train"])) == manifest["partition"]["train"]
    assert sum(map(sum, histograms["test"])) == hw.Run(undisturbed).rounds[-1]["pre"]["samples"]


def test_the_result_is_the_summary(undisturbed: Path) -> None:
    stored = json.loads((undisturbed / "result.json").read_bytes())
    assert stored.pop("lines").keys() == {"rounds.jsonl", "clients.jsonl"}
    assert len(stored.pop("checksum")) == 64
    assert stored == {"ended": "finished", **hw.Run(undisturbed).summary()}


def test_a_loss_that_is_not_finite_is_null_because_json_has_no_other_word(tmp_path: Path) -> None:
    assert to_json({"a": [float("nan"), 1.0], "b": {"c": float("-inf")}}) == '{"a": [null, 1.0], "b": {"c": null}}'
    append_lines(tmp_path / "lines", [{"loss": float("inf")}])
    assert (tmp_path / "lines").read_text() == '{"loss": null}\n'


def test_a_run_that_diverged_can_be_stored_resumed_and_read(tmp_path: Path) -> None:
    wild = experiment(4, train={"lr": 1e6, "epochs": 5}, stop={"budget": 1e-9})
    run = hw.run(wild, tmp_path / "run")
    while not run.complete:
        hw.resume(run.path)
    assert run.rounds[-1]["stale"]["loss"] is None
    assert "NaN" not in (run.path / "clients.jsonl").read_text() + (run.path / "result.json").read_text()


def test_a_loss_may_be_larger_than_any_whole_number(tmp_path: Path) -> None:
    """The loss of a diverging model may be huge; counts may not, and nothing that is read is infinite."""
    figures = {**REST, "accuracy": 0.5, "loss": 1e30}
    row = {"round": 1, "bytes_up": 0, "bytes_down": 0, "seconds": {"round": 0.1, "workers": {}}, "post": figures}
    assert write(tmp_path / "run", [row]).rounds[0]["post"]["loss"] == 1e30
    for name, value in (("bytes_up", 2**64), ("bytes_up", 1e999)):
        with pytest.raises(RunError, match=r"rounds\.jsonl is damaged"):
            _ = write(tmp_path / f"{value}", [{**row, name: value}]).rounds


def test_a_folder_that_is_not_a_run_is_called_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="gone is not the folder of a run: there is no such folder"):
        hw.Run(tmp_path / "gone").accuracy()
    with pytest.raises(RunError, match=r"is not the folder of a run: there is no manifest\.json in it"):
        _ = hw.Run(tmp_path).manifest
    for name in ("fedah-s0", "fedah-s1"):
        write(tmp_path / name, [])
    with pytest.raises(RunError, match="is a folder of runs: choose one of fedah-s0, fedah-s1"):
        _ = hw.Run(tmp_path).manifest
    (tmp_path / "comparison.json").write_text("{}")
    with pytest.raises(RunError, match="is a comparison of several runs: choose one of fedah-s0, fedah-s1"):
        hw.Run(tmp_path).summary()
