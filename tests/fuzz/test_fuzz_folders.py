"""Damaged run folders: every file of a run, every kind of damage, every command that reads.

A command may fail only in one sentence, and must never be silently wrong: a resumed run ends with the bits of the
undamaged one or is refused, and a finished run is shown with its own numbers or not at all.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from starlette.testclient import TestClient

import headwise as hw
from headwise.audit import reconstruction
from headwise.cli import main
from headwise.engine.events import Event, RoundEnded
from headwise.report.watch import watch_app
from killed_runs import bits
from same_runs import rows

COUNT = int(os.environ.get("HEADWISE_FUZZ", "60"))
FILES = (
    "manifest.json",
    "partition.json",
    "rounds.jsonl",
    "clients.jsonl",
    "diagnostics.jsonl",
    "result.json",
    "lock",
    "checkpoint",
    "checkpoint/newest",
    "checkpoint/older",
    "checkpoint/states",
)
SMALL = {"data": "synthetic:80:3:4:sites=2", "partition": "iid", "model": "mlp:3", "clients": 3, "rounds": 4}
Change = Callable[[bytearray, random.Random], None]


def truncate(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def flip(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def zero(data: bytearray, rng: random.Random) -> None:
    first = rng.randrange(len(data))
    data[first : first + 4096] = bytes(len(data[first : first + 4096]))


CHANGES: dict[str, Change] = {"truncated": truncate, "emptied": lambda d, _: d.clear(), "flipped": flip, "zeroed": zero}
DAMAGES = (*CHANGES, "flipped", "flipped", "removed", "folder")


class Case(NamedTuple):
    run: str
    file: str
    damage: str
    seed: int


def cases(count: int) -> list[Case]:
    """Every kind of damage to every file of a finished and of a killed run; then again at other positions."""
    every = [(run, file, damage) for file in FILES for damage in DAMAGES for run in ("killed", "finished")]
    random.Random(0).shuffle(every)
    return [Case(*every[k % len(every)], seed=k) for k in range(count)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four rounds, and the same run killed after the third."""
    folder = tmp_path_factory.mktemp("whole")
    experiment = hw.Experiment(method="apfl", sampling={"ratio": 0.7}, **SMALL)  # pyright: ignore[reportArgumentType]
    hw.run(experiment, folder / "finished")

    def kill(event: Event) -> None:
        if isinstance(event, RoundEnded) and event.row["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hw.run(experiment, folder / "killed", observers=[kill])
    return folder


def target(folder: Path, name: str) -> Path:
    """The file that a case is about."""
    if name == "checkpoint/states":
        return next((folder / "checkpoint").glob("states-*"))
    rounds = sorted((folder / "checkpoint").glob("round-*"))
    return {"checkpoint/older": rounds[0], "checkpoint/newest": rounds[-1]}.get(name, folder / name)


def hurt(path: Path, case: Case) -> None:
    """Apply the case's damage to this file."""
    if case.damage in CHANGES and path.is_file():
        data = bytearray(path.read_bytes())
        if data:
            CHANGES[case.damage](data, random.Random(case.seed))
            path.write_bytes(data)
        return
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if case.damage == "folder":
        (path / "inside").mkdir(parents=True)
    elif case.damage in CHANGES:
        path.write_bytes(b"")  # a file in the slot of a folder


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


class Verbs:
    """The command line, in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *args: object) -> tuple[int, str, str]:
        """Return exit code, stdout and stderr; a refusal must be one sentence."""
        with pytest.raises(SystemExit) as stop:
            main([str(a) for a in args])
        out, err = self._capsys.readouterr()
        code = stop.value.code
        assert code in (0, 2), err
        if code == 2:
            assert out == ""
            assert len(err.splitlines()) == 1, err
            assert err.startswith("headwise: ")
        assert "Traceback" not in err
        return int(code), out, err


def figures(verbs: Verbs, folder: Path) -> dict[str, Any]:
    """What `list runs` shows of each run below a folder."""
    code, out, _ = verbs("list", "runs", "--runs", folder, "--json")
    assert code == 0
    return {Path(row["run"]).name: row for row in json.loads(out)["runs"]}


@pytest.mark.parametrize("part", range(4))  # so that processes share the work
def test_damaged_folders(
    part: int, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconstruction, "GRADIENT_STEPS", 1)
    monkeypatch.setattr(reconstruction, "FEATURE_STEPS", 1)
    verbs, wanted = Verbs(capsys), bits(runs / "finished")
    usual = figures(verbs, runs)
    for case in cases(COUNT)[part::4]:
        home = tmp_path / "home"
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(runs / case.run, home / "hurt")
        shutil.copytree(runs / "finished", home / "other")
        path = target(home / "hurt", case.file)
        hurt(path, case)
        try:
            _read(verbs, home, usual["finished"] if case.run == "finished" else None)
            _resume(verbs, home / "hurt", path, wanted)
        except BaseException as error:
            error.add_note(f"{case}")
            raise


def _read(verbs: Verbs, home: Path, usual: dict[str, Any] | None) -> None:
    """Every command that reads shows the other run as before, and this one unchanged or not at all."""
    before, shown = contents(home), figures(verbs, home)
    assert shown["other"]["ended"] == "finished"
    row = shown.get("hurt", {"ended": "can't be read"})
    if usual and "can't be read" not in row["ended"] and row["ended"] != "unfinished":
        assert {**row, "run": ""} == {**usual, "run": ""}
    with TestClient(watch_app(home), base_url="http://127.0.0.1") as client:
        assert client.get("/").status_code == 200
        assert client.get("/news/hurt").status_code in (200, 404)
        assert client.get("/show/hurt").status_code in (200, 404)
    code, _, err = verbs("report", home, "-o", home.parent / "page.html")
    assert code == 0
    assert len(err.splitlines()) <= 1
    verbs("report", home / "hurt", "--table", "csv")
    verbs("audit", home / "hurt", "--clients", 1, "--json")
    assert contents(home) == before, "reading never writes"


def _resume(verbs: Verbs, folder: Path, path: Path, wanted: dict[str, Any]) -> None:
    """It ends with the same bits, or is refused in one sentence that names what is damaged."""
    before = contents(folder)
    code, _, err = verbs("resume", folder, "--quiet")
    if code == 0:
        run = hw.Run(folder)
        assert (rows(folder), run.ended) == (wanted["rows"], wanted["ended"])
        assert (folder / "clients.jsonl").read_bytes() == wanted["clients"]
        assert run.partition and run.diagnostics
        assert before == contents(folder) or bits(folder) == wanted
    else:
        assert path.name in err or str(folder / "checkpoint") in err or "no checkpoint" in err, err
        assert contents(folder) == before, "nothing is touched"
