"""Real processes that are killed, interrupted, or compete for one folder."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import headwise as hw
from headwise.disk.files import lock_folder
from headwise.engine.events import ClientDone, Event, RoundStarted
from headwise.errors import RunError
from killed_runs import bits, forks
from small_runs import arguments, die, experiment, snapshot, start, stop_after
from waiting import PATIENCE

KILLED = (-signal.SIGKILL, -signal.SIGPROF)


def events_of(asked: hw.Experiment, folder: Path) -> int:
    """How much happens in a whole run."""
    seen: list[Event] = []
    hw.run(asked, folder, observers=[seen.append])
    return len(seen)


def test_killed_ten_times_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    rounds, folder, rng, seen = 40, tmp_path / "run", random.Random(0), [0]
    a_round = events_of(experiment(rounds), tmp_path / "whole") // rounds
    for _ in range(10):  # three rounds at most
        first = rng.randrange(2 * a_round)
        life = (experiment(rounds), folder, first, rng.uniform(0.001, 0.04), first + a_round)
        process = forks().Process(target=die, args=life)
        process.start()
        process.join()
        assert process.exitcode in KILLED
        seen.append(len(hw.Run(folder).rounds))
    assert seen == sorted(seen) and len(set(seen)) > 3
    hw.resume(folder)
    assert bits(folder) == bits(tmp_path / "whole")


def test_killed_at_any_time_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    """A dozen runs, each killed once; `benchmarks/kills.py` does 200."""
    rng, rounds = random.Random(1), list[int]()
    events = events_of(experiment(), tmp_path / "whole")
    for first in range(0, events, events // 12):
        folder = tmp_path / str(first)
        process = forks().Process(target=die, args=(experiment(), folder, first, rng.uniform(0.001, 0.04), events - 1))
        process.start()
        process.join()
        assert process.exitcode in KILLED
        rounds.append(len(hw.Run(folder).rounds))
        hw.resume(folder)
        assert bits(folder) == bits(tmp_path / "whole")
    assert len(rounds) >= 12
    assert len(set(rounds)) > 1, "at different times"


def test_a_process_that_was_killed_is_resumed_by_another_from_the_command_line(tmp_path: Path) -> None:
    hw.run(experiment(30), tmp_path / "whole")
    process = start(*arguments(30, tmp_path / "run"), stdout=subprocess.DEVNULL)
    assert process.stderr is not None
    for t in (0, 1):  # what clients have before round 1, and after it
        assert process.stderr.readline().startswith(f"fedper: round {t}/30, pre (validation) 0.")
    process.kill()
    process.communicate()
    assert start("resume", str(tmp_path / "run"), "--quiet").communicate(timeout=PATIENCE)[1] == ""
    assert bits(tmp_path / "run") == bits(tmp_path / "whole")


def test_ctrl_c_finishes_the_round_and_says_how_to_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(*arguments(10_000, folder))
    assert process.stderr is not None
    for _ in range(2):  # rounds 0 and 1
        process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert f"it ended early (interrupted), continue with: headwise resume {folder}" in out
    assert "Traceback" not in err
    run = hw.Run(folder)
    assert run.ended == "interrupted"
    assert not run.complete
    assert 1 <= len(run.rounds) < 10_000


def test_an_interrupted_run_ends_with_the_same_bits(wanted: dict[str, Any], tmp_path: Path) -> None:
    def interrupt(event: Event) -> None:
        if isinstance(event, ClientDone) and event.t == 2 and len(done) == 0:
            done.append(event.t)
            os.kill(os.getpid(), signal.SIGINT)

    done: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    run = hw.run(experiment(), tmp_path / "run", observers=[interrupt])
    assert signal.getsignal(signal.SIGINT) is before
    assert (run.ended, len(run.rounds)) == ("interrupted", 2), "the round is finished first"
    hw.resume(run.path)
    assert bits(run.path) == wanted


def test_the_second_ctrl_c_ends_at_once_and_loses_only_the_round_in_flight(
    wanted: dict[str, Any], tmp_path: Path
) -> None:
    def interrupt(event: Event) -> None:
        if isinstance(event, RoundStarted) and event.t == 3:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        hw.run(experiment(), tmp_path / "run", observers=[interrupt])
    run = hw.Run(tmp_path / "run")
    assert (run.ended, len(run.rounds)) == ("unfinished", 2)
    hw.resume(run.path)
    assert bits(run.path) == wanted


def test_a_session_that_is_killed_does_not_keep_the_end_of_the_one_before(tmp_path: Path) -> None:
    run = hw.run(experiment(stop={"budget": 1e-9}), tmp_path / "run")
    assert run.ended == "budget"

    def fail(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hw.resume(run.path, observers=[fail])
    assert run.ended == "unfinished"


def test_a_budget_stops_at_the_end_of_a_round_and_every_session_does_one(
    wanted: dict[str, Any], tmp_path: Path
) -> None:
    run = hw.run(experiment(stop={"budget": 1e-9}), tmp_path / "run")
    for t in range(1, 6):
        assert len(run.rounds) == t
        assert (run.ended, run.complete) == ("budget" if t < 5 else "finished", t == 5)
        hw.resume(run.path)
    assert bits(run.path) == wanted


def test_patience_completes_a_run(tmp_path: Path) -> None:
    still = experiment(9, train={"lr": 1e-12}, stop={"patience": 2}, evaluate={"every": 2})
    run = hw.run(still, tmp_path / "run")
    assert (run.ended, run.complete, len(run.rounds)) == ("patience", True, 6)


def test_patience_counts_on_after_a_resume(tmp_path: Path) -> None:
    still = experiment(9, train={"lr": 1e-12}, stop={"patience": 3, "budget": 1e-9})
    run = hw.run(still, tmp_path / "run")
    for _ in range(8):
        hw.resume(run.path)
    assert (run.ended, len(run.rounds)) == ("patience", 4)


def test_resuming_a_finished_run_changes_nothing(undisturbed: Path) -> None:
    before = snapshot(undisturbed)
    run = hw.resume(undisturbed)
    assert run.complete
    assert snapshot(undisturbed) == before


def test_two_writers_are_refused(tmp_path: Path) -> None:
    run = stop_after(tmp_path / "run", 2)
    with lock_folder(run.path):
        before = snapshot(run.path)
        with pytest.raises(RunError, match="is being written by another process"):
            hw.resume(run.path)
        process = start("resume", str(run.path))
        out, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out) == (2, "")
        assert err == f"headwise: {run.path} is being written by another process.\n"
        assert snapshot(run.path) == before
    assert hw.resume(run.path).complete, "the lock was given back"


def test_an_error_of_somebody_elses_is_not_blamed_on_the_lock(tmp_path: Path) -> None:
    def fail(event: Event) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    with pytest.raises(BrokenPipeError):
        hw.run(experiment(), tmp_path / "run", observers=[fail])


def test_a_run_is_resumed_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    source = Path(sys.modules["headwise"].__file__ or "").parent / "methods" / "fedper.py"
    text = source.read_text().replace("from ..", "from headwise.")
    (tmp_path / "a" / "fedper.py").write_text(text)
    mine = experiment(method="fedper.py", stop={"budget": 1e-9})
    run = hw.run(mine, "run", data_dir="data")
    monkeypatch.chdir(tmp_path / "b")
    assert len(hw.resume("../a/run").rounds) == 2
    assert hw.Run("../a/run").manifest["data_dir"] == str(tmp_path / "a" / "data")
    assert run.path == Path("run")


def test_a_run_that_moved_to_another_kind_of_cpu_says_so_and_goes_on(
    wanted: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    run = stop_after(tmp_path / "run", 2)
    path = run.path / "manifest.json"
    manifest = json.loads(path.read_text())
    assert manifest["hardware"]["kernels"].startswith(torch.backends.cpu.get_cpu_capability())
    manifest["hardware"]["kernels"] = "NEON, openblas"
    del manifest["checksum"]  # it is of the manifest as it was
    path.write_text(json.dumps(manifest))
    hw.resume(run.path)
    assert bits(run.path) == wanted
    (said,) = [r.getMessage() for r in caplog.records]
    assert f"{run.path} began on {manifest['hardware']['cpu']} (NEON, openblas, torch {torch.__version__}" in said
    assert "it continues, but its last bits may differ" in said


def test_a_run_that_stayed_where_it_was_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hw.resume(stop_after(tmp_path / "run", 2).path)
    assert not caplog.records
