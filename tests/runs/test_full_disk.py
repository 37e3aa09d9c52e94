"""A disk that is really full, or a real limit on file sizes: one sentence, and the run can be resumed afterwards."""

from __future__ import annotations

import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import headwise as hw
from killed_runs import bits
from small_runs import arguments, experiment, start
from waiting import PATIENCE

ROUNDS = 30
SMALL = "size=80k"
"""enough to start a run but not to finish it"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hw.run(experiment(ROUNDS), tmp_path_factory.mktemp("whole") / "run").path


def small_disk(folder: Path, then: str) -> list[str]:
    """A command that runs in its own mount namespace, where this folder is a small disk."""
    mount = f"mount -t tmpfs -o {SMALL} none {shlex.quote(str(folder))}"
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", f"{mount} && {then}"]


def possible() -> bool:
    try:
        return subprocess.run(small_disk(Path("/tmp"), "true"), capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def goes_on(folder: Path, whole: Path) -> None:
    assert 0 < len(hw.Run(folder).rounds) < ROUNDS
    hw.resume(folder)
    assert bits(folder) == bits(whole)


@pytest.mark.skipif(not possible(), reason="no small disk can be mounted here")
def test_a_disk_that_fills_up(whole: Path, tmp_path: Path) -> None:
    disk, saved = tmp_path / "disk", tmp_path / "saved"
    disk.mkdir()
    run = shlex.join([sys.executable, "-m", "headwise", *arguments(ROUNDS, disk / "run"), "--quiet"])
    command = small_disk(disk, f"{run}; code=$?; cp -r {shlex.quote(str(disk / 'run'))} {saved}; exit $code")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"headwise: {disk}/run/")
    assert "can't be written: No space left on device: free some space, then continue a started run" in done.stderr
    goes_on(saved, whole)


def test_files_that_may_not_grow(whole: Path, tmp_path: Path) -> None:
    limit = (whole / "clients.jsonl").stat().st_size // 2
    process = start(
        *arguments(ROUNDS, tmp_path / "run"),
        "--quiet",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (2, "")
    assert err.startswith(f"headwise: {tmp_path / 'run'}/")
    assert "can't be written: File too large: " in err
    assert err.endswith("then continue a started run with headwise resume.\n")
    goes_on(tmp_path / "run", whole)
