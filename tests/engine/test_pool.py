"""Clients in several processes: the same bits as in one, even when a process dies."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import headwise as hw
from headwise.app import registry
from headwise.contract.method import record_types
from headwise.engine.events import ClientDone, Event
from headwise.engine.executors import crew, pool, shelf
from headwise.errors import ClientError
from headwise.records import encode
from headwise.runs.checkpoint import Checkpoints
from killed_runs import forks
from same_runs import rows
from waiting import PATIENCE, until

FAILING = '''
import os
from dataclasses import dataclass

from headwise.authoring import Averaging, Nothing, Shared, Update


@dataclass(frozen=True)
class Failing(Averaging[Nothing]):
    """Fails in the second round."""

    dies: bool = False
    """whether it takes its process with it"""

    def client_init(self, local):
        return Nothing()

    def local_update(self, me, down, local):
        if local.t == 2 and self.dies:
            os._exit(1)
        if local.t == 2:
            raise ZeroDivisionError("by hand")
        m = local.model(down.w)
        return Update(Shared(m.params()), me, m)

    def personalize(self, me, down, local):
        return local.model(down.w)
'''


STUMBLING = (
    FAILING.replace(
        "if local.t == 2 and self.dies:\n            os._exit(1)",
        """if local.t == 2 and not os.path.exists(__file__ + ".once"):
            open(__file__ + ".once", "w").close()
            frame = sys._getframe()
            while "pipe" not in frame.f_locals:
                frame = frame.f_back
            os.write(frame.f_locals["pipe"].fileno(), struct.pack("!i", 99_999) + b"half of it")
            os.kill(os.getpid(), signal.SIGKILL)""",
    )
    .replace("import os\n", "import os, signal, struct, sys\n")
    .replace("if local.t == 2:\n", "if local.t == 9:\n")
)
"""the same method, but one worker is killed in the middle of its reply"""

DEAF = (
    FAILING.replace(
        "if local.t == 2 and self.dies:\n            os._exit(1)",
        """if local.t == 2 and not os.path.exists(__file__ + ".once"):
            try:
                open(__file__ + ".first", "x").close()
            except FileExistsError:
                while not os.path.exists(__file__ + ".deaf"):
                    time.sleep(0.01)
                open(__file__ + ".once", "w").close()
                os._exit(1)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            open(__file__ + ".deaf", "w").close()
            time.sleep(600)
            open(__file__ + ".back", "w").close()""",
    )
    .replace("import os\n", "import os, signal, time\n")
    .replace("if local.t == 2:\n", "if local.t == 9:\n")
)
"""the same method, but one worker dies while another ignores SIGTERM"""

HANGING = FAILING.replace(
    "if local.t == 2 and self.dies:\n            os._exit(1)",
    """if local.t == 2:
            try:
                open(__file__ + ".first", "x").close()
                time.sleep(600)
                open(__file__ + ".back", "w").close()
            except FileExistsError:
                pass""",
).replace("import os\n", "import time\n")
"""the same method, but one client never returns while another raises"""


def experiment(workers: int | str, **changes: Any) -> hw.Experiment:
    usual: dict[str, Any] = {
        "method": "fedper",
        "data": "synthetic:200:4:8:sites=2",
        "partition": "dirichlet:0.5",
        "model": "mlp:8",
        "split": "8:1:1",
        "clients": 6,
        "rounds": 3,
        "sampling": {"ratio": 0.7},
        "evaluate": {"moments": ["pre", "post", "global"]},
        "engine": {"workers": workers},
    }
    return hw.Experiment(**{**usual, **changes})


def contents(run: hw.Run) -> list[Any]:
    """Everything that must not depend on where clients live."""
    types = record_types(registry.find("method", run.method))
    with closing(Checkpoints(run.path / "checkpoint", types)) as checkpoints:
        found = checkpoints.load()
        assert found is not None
        states = {c: found.states.encode(c) for c in found.states}
    return [rows(run), run.clients, encode(found.progress.server), states]


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return contents(hw.run(experiment(1), tmp_path_factory.mktemp("serial") / "run"))


@pytest.fixture
def quick_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that need not import torch first: they are forks of a process that has it."""
    context = forks()
    monkeypatch.setattr(crew, "multiprocessing", SimpleNamespace(get_context=lambda kind: context))


quick = pytest.mark.usefixtures("quick_workers")


@pytest.mark.parametrize("workers", [2, "threads:2"])
def test_more_workers_give_the_same_bits_as_one(workers: int | str, serial: list[Any], tmp_path: Path) -> None:
    run = hw.run(experiment(workers), tmp_path / "run")
    assert contents(run) == serial
    assert multiprocessing.active_children() == []


@quick
def test_any_number_of_workers_gives_the_same_bits(serial: list[Any], tmp_path: Path) -> None:
    assert contents(hw.run(experiment(3), tmp_path / "run")) == serial


@quick
def test_a_worker_that_is_killed_changes_no_bit(serial: list[Any], tmp_path: Path) -> None:
    killed: list[int] = []

    def kill(event: Event) -> None:
        if isinstance(event, ClientDone) and event.t == 2 and event.kind == "fit" and not killed:
            workers = multiprocessing.active_children()
            assert len(workers) == 2
            killed.append(workers[0].pid or 0)
            os.kill(killed[0], signal.SIGKILL)

    assert contents(hw.run(experiment(2), tmp_path / "run", observers=[kill])) == serial
    assert killed


@quick
@pytest.mark.parametrize("method", [STUMBLING, DEAF], ids=["in the middle of its reply", "beside one that is deaf"])
def test_a_worker_that_dies_is_not_waited_for(method: str, tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(method)
    settings = {"method": f"{tmp_path}/failing.py", "clients": 3, "sampling": {"ratio": 1.0}}
    run = hw.run(experiment(2, **settings), tmp_path / "run")
    assert (tmp_path / "failing.py.once").exists(), "it was killed"
    assert not (tmp_path / "failing.py.back").exists(), "no other was waited for"
    assert run.complete and len(run.rounds) == 3
    assert contents(run) == contents(hw.run(experiment(1, **settings), tmp_path / "whole"))
    assert multiprocessing.active_children() == []


@quick
@pytest.mark.parametrize(
    ("dies", "words"),
    [
        ("false", r"Failing failed at client \d in round 2 \(fit, failing.py, line \d+\): ZeroDivisionError: by"),
        ("true", r"a worker died 1 times at one of the clients \[0, 1, 2\]"),
    ],
)
def test_a_failure_in_a_worker_is_told(dies: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "ATTEMPTS", 1)
    (tmp_path / "failing.py").write_text(FAILING)
    method = f"{tmp_path}/failing.py:dies={dies}"
    with pytest.raises(ClientError, match=words):
        hw.run(experiment(2, method=method, clients=3, sampling={"ratio": 1.0}), tmp_path / "run")
    assert len(hw.Run(tmp_path / "run").rounds) == 1, "the round before is safe"
    assert multiprocessing.active_children() == []


@quick
def test_a_failure_is_told_at_once_though_another_worker_never_comes_back(tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(HANGING)
    with pytest.raises(ClientError, match="ZeroDivisionError: by hand"):
        hw.run(experiment(2, method=f"{tmp_path}/failing.py", clients=3, sampling={"ratio": 1.0}), tmp_path / "run")
    assert not (tmp_path / "failing.py.back").exists(), "it was not waited for"
    assert multiprocessing.active_children() == []


@quick
def test_faults_and_deadlines_give_the_same_bits_in_workers(tmp_path: Path) -> None:
    faults = {"inject": "drop=0.2,nan=0.1,twice=0.1,slow=0.1", "deadline": PATIENCE}
    one, two = (hw.run(experiment(k, faults=faults), tmp_path / str(k)) for k in (1, 2))
    assert contents(one) == contents(two)
    assert one.failed == two.failed != {}


@quick
def test_a_worker_that_dies_is_no_end_where_clients_may_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "ATTEMPTS", 1)
    (tmp_path / "failing.py").write_text(FAILING)
    faults = {"on_failure": "skip", "min_replies": 0}
    method = f"{tmp_path}/failing.py:dies=true"
    run = hw.run(experiment(2, method=method, clients=3, sampling={"ratio": 1.0}, faults=faults), tmp_path / "run")
    assert [row.get("failed") for row in run.rounds] == [None, {"no answer": [0, 1, 2]}, None]
    assert run.complete


@quick
def test_there_are_never_more_workers_than_clients(tmp_path: Path) -> None:
    most: list[int] = []
    small, many = (
        experiment(workers, method="fedavg", clients=1, rounds=1, sampling={"ratio": 1.0}, partition="iid")
        for workers in (1, 200)
    )
    watch = [lambda event: most.append(len(multiprocessing.active_children()))]
    run = hw.run(many, tmp_path / "many", observers=watch)
    assert max(most) == 1
    assert "global" in run.rounds[-1]
    assert contents(run) == contents(hw.run(small, tmp_path / "small"))


def test_a_run_folder_in_shared_memory_outlives_other_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "MEMORY", tmp_path)
    mine = hw.run(experiment(1, rounds=1), tmp_path / "headwise-mine")
    hw.run(experiment(2, rounds=1), tmp_path / "other")
    assert len(mine.rounds) == 1


def test_a_group_that_is_killed_leaves_no_semaphore(tmp_path: Path) -> None:
    """All its processes are killed at once, so that none can clean up."""
    flags = {"data": "synthetic:100:3:4", "clients": 4, "rounds": 100_000, "workers": 2, "out": tmp_path / "run"}
    words = [str(word) for name, value in flags.items() for word in (f"--{name}", value)]
    group = subprocess.Popen([sys.executable, "-m", "headwise", "run", "--quiet", *words], start_new_session=True)
    until(lambda: (tmp_path / "run" / "rounds.jsonl").exists() or group.poll() is not None, "a round")
    assert group.poll() is None
    maps = [Path(f"/proc/{pid}/maps").read_text() for pid in (group.pid, *children_of(group.pid))]
    os.killpg(group.pid, signal.SIGKILL)
    group.wait()
    assert len(maps) >= 3, "the driver and its workers"
    named = {line.split()[-1] for text in maps for line in text.splitlines() if "/dev/shm/sem." in line}
    assert named <= {"(deleted)"}, "semaphores that have a name outlive a kill"
    for left in Path("/dev/shm").glob(f"{shelf.PREFIX}*"):
        shelf._sweep(left)


def children_of(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
