"""Damaged files of a run are named or restored; and a run can be read while it continues."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

import headwise as hw
from headwise.audit import reconstruction
from headwise.audit.auditing import audit
from headwise.contract.method import record_types
from headwise.disk.files import checksum
from headwise.errors import RunError
from headwise.log.schema import Figures
from headwise.methods.fedper import FedPer
from headwise.records import Packed, from_bytes, to_bytes
from headwise.report.page import render
from headwise.report.results import collect
from headwise.runs.checkpoint import Checkpoints
from headwise.runs.files import judge_of
from killed_runs import bits, forks
from small_runs import experiment, flip, snapshot, stop_after

Change = Callable[[dict[str, torch.Tensor], dict[str, Any]], None]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run stopped after three of its five rounds."""
    return stop_after(tmp_path_factory.mktemp("killed") / "run", 3).path


@pytest.fixture
def run(killed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(killed, tmp_path / "run"))


def newest(run: Path) -> Path:
    return max((run / "checkpoint").glob("round-*"))


def forge(path: Path, change: Change) -> None:
    """Change a checkpoint and update its checksum."""
    tensors, scalars = from_bytes(path.read_bytes())
    note = json.loads(str(scalars["note"]))
    change(tensors, note)
    data = to_bytes(Packed(tensors, {"note": json.dumps(note)}))
    path.unlink()
    path.with_name(f"{path.name[:14]}{checksum(data):08x}.safetensors").write_bytes(data)


def forge_all(run: Path, change: Change) -> None:
    for path in list((run / "checkpoint").glob("round-*")):
        forge(path, change)


@pytest.mark.parametrize("name", ["rounds.jsonl", "clients.jsonl"])
@pytest.mark.parametrize("zeroed", [False, True], ids=["one bit", "zeros"])
def test_a_line_that_was_changed_is_named_before_anything_is_touched(name: str, zeroed: bool, run: Path) -> None:
    path = run / name
    if zeroed:
        path.write_bytes(b"\0" * path.stat().st_size)
    else:
        at = path.read_bytes().index(b'"accuracy": 0.') + len(b'"accuracy": 0.')  # a digit of the first round
        flip(path, (at + 0.5) / path.stat().st_size)
        assert len(hw.Run(run).rounds) == 3, "it is still a line"
    before = snapshot(run)
    with pytest.raises(RunError, match=rf"{name} is damaged: its first \d+ bytes changed after round 3 ended"):
        hw.resume(run)
    assert snapshot(run) == before


@pytest.mark.parametrize("name", ["rounds.jsonl", "clients.jsonl"])
def test_a_changed_line_of_the_last_round_is_written_again(name: str, wanted: dict[str, Any], run: Path) -> None:
    flip(run / name, 0.999)
    hw.resume(run)
    assert bits(run) == wanted


def test_a_damaged_result_is_written_again(undisturbed: Path, wanted: dict[str, Any], tmp_path: Path) -> None:
    run = Path(shutil.copytree(undisturbed, tmp_path / "run"))
    (run / "result.json").write_text('{"ended": "finisched"}')
    with pytest.raises(RunError, match=r"result\.json is damaged: its ended is 'finisched'"):
        _ = hw.Run(run).ended
    hw.resume(run)
    assert bits(run) == wanted
    assert json.loads((run / "result.json").read_text())["ended"] == "finished"


def test_a_changed_figure_of_a_finished_run_is_named(undisturbed: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(undisturbed, tmp_path / "run"))
    path = run / "rounds.jsonl"
    at = path.read_bytes().rindex(b'"accuracy": 0.') + len(b'"accuracy": 0.')
    flip(path, (at + 0.5) / path.stat().st_size)
    for read in (hw.Run(run).summary, lambda: hw.resume(run), lambda: collect([run])):
        with pytest.raises(RunError, match=r"rounds\.jsonl is damaged: its first \d+ bytes"):
            read()


def test_a_changed_setting_is_not_run(run: Path) -> None:
    path = run / "manifest.json"
    path.write_text(path.read_text().replace('"rounds": 5', '"rounds": 4'))
    with pytest.raises(RunError, match=r"manifest\.json is damaged: its checksum does not match"):
        hw.resume(run)


def test_a_lost_partition_is_written_again(undisturbed: Path, run: Path) -> None:
    (run / "partition.json").unlink()
    hw.resume(run)
    assert (run / "partition.json").read_bytes() == (undisturbed / "partition.json").read_bytes()


def without(part: str) -> Change:
    def drop(tensors: dict[str, torch.Tensor], _: dict[str, Any]) -> None:
        for name in [k for k in tensors if k.startswith(part)]:
            del tensors[name]

    return drop


def note_of(**values: Any) -> Change:
    return lambda _, note: note.update(values)


def places_of(make: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    return lambda tensors, _: tensors.update(places=make(tensors["places"]))


def slot(column: int, value: int) -> Change:
    def put(places: torch.Tensor) -> torch.Tensor:
        places[:, column] = value
        return places

    return places_of(put)


FORGED = {
    "no places": without("places"),
    "places in a row": places_of(lambda p: p.flatten()),
    "places as fractions": places_of(lambda p: p.float()),
    "places too narrow": places_of(lambda p: p[:, :3].clone()),
    "one client": slot(0, 0),
    "slot size": slot(1, 1),
    "slot number": slot(2, 2**62),
    "slot before the file": slot(2, -1),
    "slot length": slot(3, 2**40),
    "one slot for all": slot(2, 0),
    "no sizes": note_of(sizes={}),
    "no digests": note_of(digests={}),
    "sizes as text": note_of(sizes={"rounds.jsonl": "1", "clients.jsonl": 1}),
    "sizes below nothing": note_of(sizes={"rounds.jsonl": -1, "clients.jsonl": -1}),
    "round as text": note_of(round="x"),
    "another round": note_of(round=1),
    "best as list": note_of(best=[]),
    "waited as text": note_of(waited="long"),
    "scalars as list": note_of(scalars=[]),
    "more tensors": lambda tensors, _: tensors.update(more=torch.zeros(1)),
    "digests as list": note_of(digests=[]),
}


@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED.keys())
def test_a_forged_checkpoint_with_a_right_checksum_is_passed_over(
    change: Change, wanted: dict[str, Any], run: Path
) -> None:
    forge(newest(run), change)
    hw.resume(run)
    assert bits(run) == wanted


def test_strays_in_the_checkpoints_folder_are_left_alone(wanted: dict[str, Any], run: Path) -> None:
    strays = ["round-x.safetensors", "round-0000003-zzzzzzzz.safetensors", "my-round-notes.txt", "round-"]
    for name in strays:
        (run / "checkpoint" / name).write_text("mine")
    (run / "checkpoint" / "folder").mkdir()
    (run / "checkpoint" / "round-0000009-00000000.safetensors").mkdir()
    hw.resume(run)
    assert bits(run) == wanted
    assert {*strays, "folder"} <= {p.name for p in (run / "checkpoint").iterdir()}


def test_a_file_in_the_place_of_the_checkpoints_is_one_sentence(tmp_path: Path) -> None:
    run = stop_after(tmp_path / "run", 1).path
    shutil.rmtree(run / "checkpoint")
    (run / "checkpoint").write_text("")
    with pytest.raises(RunError, match="checkpoint can't be written: File exists"):
        hw.resume(run)


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only disk."""
    opened = os.open

    def refusing(path: Any, flags: int, *args: Any, **more: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and "run" in Path(path).parts:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return opened(path, flags, *args, **more)

    monkeypatch.setattr(os, "open", refusing)
    monkeypatch.setattr(reconstruction, "GRADIENT_STEPS", 1)
    monkeypatch.setattr(reconstruction, "FEATURE_STEPS", 1)


@pytest.mark.usefixtures("read_only")
def test_an_audit_needs_no_right_to_write(run: Path) -> None:
    assert audit(run, clients=1).t == 3


def test_readers_beside_a_writer_see_one_moment_of_it(tmp_path: Path) -> None:
    """Reading while checkpoints, slots and lines are replaced never fails, and each view is of one round."""
    folder, views = tmp_path / "run", list[int]()
    writer = forks().Process(target=hw.run, args=(experiment(25), folder))
    writer.start()
    while writer.is_alive():
        if (folder / "checkpoint").exists():
            with closing(Checkpoints(folder / "checkpoint", record_types(FedPer))) as checkpoints:
                found = checkpoints.look()
            if found:
                assert max(found.states[c].trained for c in found.states) <= found.progress.t
                views.append(found.progress.t)
                hw.Run(folder).check()
                render(collect([folder]))
    writer.join()
    assert writer.exitcode == 0
    assert views == sorted(views)
    assert len(set(views)) > 1, "the run continued meanwhile"


def test_a_metric_that_is_not_a_number_is_found_when_it_is_read() -> None:
    """Metrics may have any name, but those that we know must be numbers."""
    wrong = judge_of(Figures)({"accuracy": None})
    assert wrong is not None and wrong.at == "accuracy"
