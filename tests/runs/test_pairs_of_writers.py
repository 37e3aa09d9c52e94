"""Two processes start a run in one folder at the same moment: one gets it, the other writes nothing."""

from __future__ import annotations

import os
import threading
from functools import partial
from pathlib import Path

import pytest

import headwise as hw
from headwise.app.launch import Backend
from headwise.app.prepare import Prepared, prepare
from headwise.disk.files import lock_folder
from headwise.errors import RunError
from headwise.runs import manifest
from headwise.runs.store import new_run
from headwise.settings.experiment import Experiment
from small_runs import experiment, snapshot

PAIRS = 100


class BegunError(Exception):
    """A run has its folder and would train now."""


def begin(made: Prepared, folder: Path, together: threading.Barrier, seen: list[str]) -> None:
    """Start a run together with all others; record the folder's content when training would begin, or the refusal."""

    def make(given: Experiment) -> Prepared:
        together.wait()
        return made

    def executor(*_: object) -> None:
        seen.append(f"began {hw.Run(folder).manifest['experiment']['seed']} as {made.experiment.seed}")
        raise BegunError

    try:
        hw.run(made.experiment, folder, backend=Backend(make, executor))  # pyright: ignore[reportArgumentType]
    except BegunError:
        pass
    except RunError as error:
        seen.append(str(error))


def test_of_two_writers_one_has_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "_revision", lambda: None)  # asking git takes longer than all else
    both = [prepare(experiment(seed=seed), tmp_path) for seed in (1, 2)]
    for k in range(PAIRS):
        folder, together, seen = tmp_path / f"pair-{k}" / "run", threading.Barrier(2), list[str]()
        threads = [threading.Thread(target=begin, args=(made, folder, together, seen)) for made in both]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seed = hw.Run(folder).manifest["experiment"]["seed"]
        refused = {
            f"{folder} is being written by another process.",
            f"{folder} exists already and is not empty: choose another folder, or continue it with resume.",
        }
        assert sorted(seen)[1:] == [f"began {seed} as {seed}"] or sorted(seen)[:1] == [f"began {seed} as {seed}"], seen
        assert len(refused & set(seen)) == 1, seen
        assert hw.Run(folder).partition["train"] == both[seed - 1].histograms["train"]
        assert sorted(p.name for p in folder.iterdir()) == ["lock", "manifest.json", "partition.json"]


def test_one_who_comes_while_another_begins_writes_nothing(tmp_path: Path) -> None:
    folder, again = tmp_path / "run", partial(hw.run, experiment(), tmp_path / "run")
    with lock_folder(folder, make=True):
        before = snapshot(folder)
        with pytest.raises(RunError, match="is being written by another process"):
            again()
        assert snapshot(folder) == before
    assert again().complete, "the one before had not begun"


def test_a_lock_that_was_removed_keeps_nobody_out(tmp_path: Path) -> None:
    """A run that failed to start removes its lock file: a process that had it open must not believe it has the lock."""
    opened = os.open

    def slowly(path: os.PathLike[str], *args: int) -> int:
        number = opened(path, *args)
        if Path(path).name == "lock" and not removed:
            removed.append(path)
            Path(path).unlink()
        return number

    removed: list[os.PathLike[str]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", slowly)
        with lock_folder(tmp_path / "run", make=True):
            patch.undo()
            assert removed
            with pytest.raises(RunError, match="is being written by another process"), lock_folder(tmp_path / "run"):
                raise AssertionError("there are two writers")


def test_a_folder_in_which_nothing_can_be_written_is_not_left_behind(tmp_path: Path) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", full)  # as where no inode is left
        with pytest.raises(RunError, match="lock can't be written: No space left on device"):
            new_run(tmp_path / "new" / "run", {}, {}).__enter__()
    assert not (tmp_path / "new").exists()
