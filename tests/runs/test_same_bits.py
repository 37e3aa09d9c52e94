"""However a run is interrupted, it ends with the same bits."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import headwise as hw
from headwise.cli import main
from headwise.errors import RunError
from headwise.runs.checkpoint import GRAIN
from killed_runs import bits, checkpoint
from same_runs import rows
from small_runs import arguments, cut, experiment, flip, snapshot, stop_after

Damage = Callable[[Path], None]


def test_the_same_seed_gives_the_same_bits_and_another_one_others(wanted: dict[str, Any], tmp_path: Path) -> None:
    hw.run(experiment(), tmp_path / "again")
    assert bits(tmp_path / "again") == wanted
    hw.run(experiment(seed=1), tmp_path / "other")
    assert rows(tmp_path / "other") != wanted["rows"]


class Crash(BaseException):
    """The process is dead: nothing it still does has any effect."""


def dies_at(monkeypatch: pytest.MonkeyPatch, operation: int) -> list[int]:
    """Make every file operation from this one on fail, as if the process had been killed; counts them."""
    count = [0]

    def mortal(act: Callable[..., Any]) -> Callable[..., Any]:
        def do(*args: Any, **kwargs: Any) -> Any:
            count[0] += 1
            if count[0] >= operation:
                raise Crash
            return act(*args, **kwargs)

        return do

    for owner, names in (
        (os, ("fsync", "fdatasync", "truncate", "pwrite")),
        (Path, ("replace", "unlink", "mkdir", "rmdir")),
    ):
        for name in names:
            monkeypatch.setattr(owner, name, mortal(getattr(owner, name)))
    return count


def operations(folder: Path) -> int:
    """How many file operations a run takes."""
    with pytest.MonkeyPatch.context() as patch:
        count = dies_at(patch, 10**9)
        hw.run(experiment(3), folder)
    return count[0]


def test_a_crash_at_any_moment_of_writing_is_mended_by_resume(tmp_path: Path) -> None:
    total = operations(tmp_path / "whole")
    whole = bits(tmp_path / "whole")
    assert total > 30
    for k in range(1, total + 1):
        folder = tmp_path / f"crash-{k}"
        with pytest.MonkeyPatch.context() as patch:
            dies_at(patch, k)
            with pytest.raises(Crash):
                hw.run(experiment(3), folder)
        if (folder / "manifest.json").exists():
            hw.resume(folder)
        else:
            hw.run(experiment(3), folder)  # it had not begun: the folder is as good as new
        assert bits(folder) == whole, f"died at operation {k} of {total}"
        left = {p.name for p in (folder / "checkpoint").iterdir()}
        assert not [name for name in left if name.endswith(".tmp")], f"died at operation {k} of {total}"


@pytest.mark.parametrize("operation", [1, 2, 4, 6, 11, 13])
def test_a_full_disk_is_one_sentence_and_the_run_goes_on_afterwards(
    operation: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hw.run(experiment(3), tmp_path / "whole")
    count = [0]

    def filling(real: Callable[..., int | None]) -> Callable[..., int | None]:
        def write(*args: Any) -> int | None:
            count[0] += 1
            if count[0] >= operation:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args)

        return write

    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "fdatasync", "pwrite"):
            patch.setattr(os, name, filling(getattr(os, name)))
        with pytest.raises(SystemExit) as stop:
            main([*arguments(3, Path("new/run")), "--quiet"])
    said = capsys.readouterr()
    assert stop.value.code == 2
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert said.err.startswith("headwise: new/run/")
    assert "can't be written: No space left on device" in said.err
    if operation <= 2:
        assert not Path("new").exists(), "a run that could not begin leaves nothing behind"
        return
    hw.resume("new/run")
    assert bits(Path("new/run")) == bits(tmp_path / "whole")


def newest(folder: Path) -> Path:
    """The newest checkpoint file."""
    return max((folder / "checkpoint").glob("round-*"))


def goes_on_after(folder: Path) -> int:
    """Resume and return how many rounds counted as done."""
    done: list[int] = []
    hw.resume(folder, observers=[lambda event: done.append(getattr(event, "start", 0))])
    return max(done)


@pytest.mark.parametrize(
    "damage",
    [flip, lambda p: flip(p, 0.98), cut, lambda p: p.write_bytes(b""), Path.unlink],
    ids=["flip", "flip in a tensor", "cut", "empty", "gone"],
)
def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(
    damage: Damage, wanted: dict[str, Any], tmp_path: Path
) -> None:
    stop_after(tmp_path / "run", 3)
    damage(newest(tmp_path / "run"))
    assert goes_on_after(tmp_path / "run") == 2
    assert bits(tmp_path / "run") == wanted


def test_a_damaged_state_gives_way_to_the_checkpoint_before(wanted: dict[str, Any], tmp_path: Path) -> None:
    run = stop_after(tmp_path / "run", 3)
    found, checkpoints = checkpoint(run.path)
    with closing(checkpoints):
        slot = checkpoints._places[run.rounds[-1]["clients"][0]]
    path = run.path / "checkpoint" / f"states-{slot.size}.bin"
    data = bytearray(path.read_bytes())
    data[slot.number * slot.size + slot.length // 2] ^= 4
    path.write_bytes(data)
    assert found.progress.t == 3
    assert goes_on_after(run.path) == 2
    assert bits(run.path) == wanted


@pytest.mark.parametrize("damage", [lambda p: p.write_bytes(b""), Path.unlink], ids=["empty", "gone"])
def test_states_that_no_checkpoint_can_do_without_are_told_and_nothing_is_touched(
    damage: Damage, tmp_path: Path
) -> None:
    run = stop_after(tmp_path / "run", 3)
    for path in run.path.glob("checkpoint/states-*"):
        damage(path)
    before = snapshot(run.path)
    with pytest.raises(RunError, match="has no intact checkpoint"):
        hw.resume(run.path)
    assert snapshot(run.path) == before


def test_two_damaged_checkpoints_are_told_and_nothing_is_touched(tmp_path: Path) -> None:
    run = stop_after(tmp_path / "run", 3)
    for path in run.path.glob("checkpoint/round-*"):
        flip(path)
    before = snapshot(run.path)
    with pytest.raises(RunError, match=r"has no intact checkpoint \(round-0000003-.*: .*round-0000002-"):
        hw.resume(run.path)
    assert snapshot(run.path) == before


def test_rounds_whose_checkpoints_are_gone_are_not_thrown_away(tmp_path: Path) -> None:
    run = stop_after(tmp_path / "run", 3)
    for path in run.path.glob("checkpoint/*"):
        path.unlink()
    before = snapshot(run.path)
    with pytest.raises(RunError, match="has 3 rounds but no checkpoint"):
        hw.resume(run.path)
    assert snapshot(run.path) == before


@pytest.mark.parametrize("name", ["rounds.jsonl", "clients.jsonl"])
@pytest.mark.parametrize("torn", [b'{"round": 4, "cli', b'{"round": 4, "clients": [0], "bytes_up": 3}\n', b"\0" * 50])
def test_torn_lines_are_passed_over_and_mended(name: str, torn: bytes, wanted: dict[str, Any], tmp_path: Path) -> None:
    run = stop_after(tmp_path / "run", 3)
    with (run.path / name).open("ab") as file:
        file.write(torn)
    if not torn.endswith(b"\n"):
        assert len(run.rounds) == 3
    hw.resume(run.path)
    assert bits(run.path) == wanted


def test_lines_that_are_missing_are_told(tmp_path: Path) -> None:
    run = stop_after(tmp_path / "run", 3)
    cut(run.path / "rounds.jsonl")
    with pytest.raises(RunError, match=r"rounds\.jsonl is damaged: it has \d+ bytes, but had \d+ when round 3 ended"):
        hw.resume(run.path)


def test_files_do_not_accumulate(tmp_path: Path) -> None:
    folder, most = tmp_path / "run", [0, 0]

    def count(event: object) -> None:
        files = list(folder.glob("checkpoint/*"))
        slots = sum(p.stat().st_size // GRAIN for p in files if p.name.startswith("states-"))
        most[:] = [max(most[0], len(files)), max(most[1], slots)]

    hw.run(experiment(12), folder, observers=[count])
    states, drawn = 5, 3
    assert most[0] <= 2 + 1 + 1, "two checkpoints, that of the best round, and one file of states"
    assert most[1] <= 2 * states + 2 * drawn, "states, those of the best and the last round, those being written"
    assert {p.name for p in folder.iterdir()} == {
        "checkpoint", "clients.jsonl", "lock", "manifest.json", "partition.json", "result.json", "rounds.jsonl"
    }  # fmt: skip
