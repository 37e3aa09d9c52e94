"""Run folders written by older versions, committed unchanged: every number can still be read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import headwise as hw
from headwise.app.launch import run_or_resume
from headwise.errors import RunError
from headwise.runs.manifest import FORMAT
from headwise.settings.experiment import experiment_from

FIXTURES = Path(__file__).parent.parent / "fixtures"


def test_there_is_a_folder_of_every_format() -> None:
    assert sorted(p.name for p in FIXTURES.glob("format-*")) == [f"format-{k}" for k in range(1, FORMAT + 1)]


@pytest.mark.parametrize("version", range(1, FORMAT + 1))
def test_a_finished_run_is_read(version: int) -> None:
    folder = FIXTURES / f"format-{version}" / "finished"
    run, stored = hw.Run(folder), json.loads((folder / "result.json").read_text())
    assert (run.manifest["format"], run.complete, len(run.rounds), len(run.clients)) == (version, True, 3, 9)
    now = run.summary()
    assert {k: now[k] for k in stored if k not in ("run", "ended")} == {
        k: v for k, v in stored.items() if k not in ("run", "ended")
    }
    assert hw.resume(folder).path == folder, "there is nothing left to do"


def copied(version: int, tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURES / f"format-{version}" / "stopped", tmp_path / "run"))


def test_a_stopped_run_of_this_format_goes_on_and_ends_as_the_finished_one(tmp_path: Path) -> None:
    run = hw.resume(copied(FORMAT, tmp_path))
    ended = hw.Run(FIXTURES / f"format-{FORMAT}" / "finished")
    assert run.complete
    for now, then in zip(run.rounds, ended.rounds, strict=True):
        assert (now["round"], now["bytes_up"], now["clients"]) == (then["round"], then["bytes_up"], then["clients"])
        torch.testing.assert_close(now["pre"]["loss"], then["pre"]["loss"], rtol=1e-4, atol=0)


def test_a_run_from_before_there_were_tasks_is_the_same_experiment(tmp_path: Path) -> None:
    folder = copied(FORMAT, tmp_path)
    asked = hw.Run(folder).manifest["experiment"]
    assert "task" not in asked
    assert run_or_resume(experiment_from(asked), folder).complete


def test_a_stopped_run_of_an_older_format_is_read_but_not_resumed(tmp_path: Path) -> None:
    folder = copied(1, tmp_path)
    assert len(hw.Run(folder).rounds) == 2
    with pytest.raises(RunError, match=r"was begun by an older Headwise .*: it can be read, not resumed"):
        hw.resume(folder)
