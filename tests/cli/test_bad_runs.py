"""Run folders that can't be resumed: one sentence, and not a byte is changed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from saying import Headwise, assert_refused, small, snapshot

import headwise as hw
from headwise.cli import main
from headwise.disk.files import lock_folder


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has finished two of three rounds."""
    folder = tmp_path_factory.mktemp("unfinished") / "run"
    args = small(rounds="3", out=str(folder), set="stop.budget=1e-9")
    for command in (args, ["resume", str(folder)]):
        with pytest.raises(SystemExit):
            main([*command, "--quiet"])
    assert len(hw.Run(folder).rounds) == 2
    return folder


@pytest.fixture
def run(unfinished: Path, here: Path) -> Path:
    """A copy of it."""
    shutil.copytree(unfinished, here / "run")
    return Path("run")


def manifest(**changes: Any) -> Callable[[Path], None]:
    """Change the manifest; names with the prefix `experiment_` change its experiment."""

    def apply(run: Path) -> None:
        found = json.loads((run / "manifest.json").read_bytes())
        for name, value in changes.items():
            where = found["experiment"] if name.startswith("experiment_") else found
            where[name.removeprefix("experiment_")] = value
        del found["checksum"]  # which would say that something has changed
        (run / "manifest.json").write_text(json.dumps(found))

    return apply


def write(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda run: [p.write_bytes(content) for p in run.glob(name)] and None


DAMAGES = [
    (manifest(format=2), "run is in format 2, but Headwise 0.1.0 reads format 1."),
    (manifest(format=None), "run/manifest.json is damaged", "format is None"),
    (manifest(experiment=3), "run/manifest.json is damaged", "experiment is 3"),
    (manifest(data_dir=None), "run/manifest.json is damaged", "data_dir is None"),
    (manifest(experiment_rounds=0), "rounds is 0"),
    (manifest(experiment_future=1), "future is not a setting"),
    (manifest(experiment_method={"name": "fedgone"}), "method is 'fedgone'"),
    (
        manifest(partition={"hash": "0" * 64, "floor": {"weighted": None}}),
        "run was run on partition 000000000000",
        "but the data now gives",
    ),
    (manifest(partition={}), "run/manifest.json is damaged"),
    (write("manifest.json", b""), "run/manifest.json is damaged: it is not valid JSON"),
    (write("manifest.json", b'{"format": 1, "exp'), "run/manifest.json is damaged: it is not valid JSON"),
    (write("manifest.json", b"\xff\xfe\0"), "run/manifest.json is damaged: it is not valid JSON"),
    (write("checkpoint/round-*", b"{}"), "run/checkpoint has no intact checkpoint", "round-0000001-"),
    (
        write("checkpoint/states-*", b""),
        "run/checkpoint has no intact checkpoint",
        "states-4096.bin is damaged: slot ",
    ),
    (write("rounds.jsonl", b""), "run/rounds.jsonl is damaged: it has 0 bytes"),
    (lambda run: shutil.rmtree(run / "checkpoint"), "run has 2 rounds but no checkpoint"),
]


@pytest.mark.parametrize(("damage", "parts"), [(d, parts) for d, *parts in DAMAGES], ids=[d[1] for d in DAMAGES])
def test_a_run_that_can_not_be_resumed_is_not_touched(
    damage: Callable[[Path], None], parts: list[str], headwise: Headwise, run: Path
) -> None:
    damage(run)
    before = snapshot(run)
    assert_refused(headwise("resume", "run", "--quiet"), *parts)
    assert snapshot(run) == before


def test_a_folder_that_is_no_run_is_named(headwise: Headwise, here: Path) -> None:
    (here / "empty").mkdir()
    (here / "file").write_text("")
    assert_refused(headwise("resume", "nowhere"), "nowhere is not the folder of a run: there is no such folder")
    assert_refused(headwise("resume", "empty"), "empty is not the folder of a run: there is no manifest.json in it")
    assert_refused(headwise("resume", "file"), "file can't be read", "Not a directory")
    assert snapshot(here) == {"empty": None, "file": b""}


def test_a_run_is_not_overwritten_by_another(headwise: Headwise, run: Path) -> None:
    before = snapshot(run)
    assert_refused(headwise(*small(out="run")), "run exists already and is not empty", "resume")
    assert snapshot(run) == before


def test_a_run_that_somebody_writes_is_refused(headwise: Headwise, run: Path) -> None:
    with lock_folder(run):
        before = snapshot(run)
        assert_refused(headwise("resume", "run"), "run is being written by another process")
        assert snapshot(run) == before
    assert headwise("resume", "run", "--quiet").code == 0


def test_a_comparison_does_not_go_on_with_another_experiment(headwise: Headwise, here: Path) -> None:
    assert headwise(*small("compare", "fedavg", out="table"), "--quiet").code == 0
    before = snapshot(here)
    assert_refused(
        headwise(*small("compare", "fedavg", out="table", lr="0.7")), "table/fedavg-d0-s0", "another experiment"
    )
    assert snapshot(here) == before


def test_a_damaged_run_among_others_is_named(headwise: Headwise, run: Path) -> None:
    os.truncate(run / "manifest.json", 20)
    said = headwise("list", "runs", "--runs", ".")
    assert (said.code, said.err) == (0, "")
    assert "can't be read: run/manifest.json is damaged" in said.out
