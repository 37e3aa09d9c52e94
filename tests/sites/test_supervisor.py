"""What a command starts ends with it, however it ends; a folder has one command, and a port one owner."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from laboratory import free_port

from headwise.errors import ConfigError, RunError
from headwise.sites.transport import superlink
from headwise.sites.transport.supervisor import (
    STATUS,
    Supervisor,
    claim_folder,
    describe_exit,
    read_status,
    stop_command,
)
from waiting import until

CHILD = """
import subprocess, sys, time
from headwise.sites.transport.supervisor import bind_life, read_secret, report_event

bind_life({leave})
secret = read_secret()
below = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
report_event(pids=[{me}, below.pid], secret=secret)
print("a line for the log", flush=True)
time.sleep(1000)
"""
COMMAND = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests themselves may run in the background
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from pathlib import Path
from headwise.sites.transport.supervisor import STATUS, Supervisor, claim_folder
from headwise.disk.files import write_json

home = Path(sys.argv[1])
with claim_folder(home, "site"):
    write_json(home / STATUS, {"pid": os.getpid()})
    supervisor = Supervisor(home / "flower.log")
    with supervisor.supervise():
        supervisor.start("child", [sys.executable, str(home / "child.py")], os.environ, "a secret")
        event = supervisor.next_event().values
        write_json(home / "pids.json", event["pids"])
        while "stop" not in supervisor.next_event().values:
            pass
"""


def lives(pid: int) -> bool:
    """A zombie does not: in a container without init, orphans stay as such."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def write_child(home: Path, leave: str = "") -> None:
    (home / "child.py").write_text(CHILD.format(leave=leave, me="__import__('os').getpid()"))


@pytest.fixture
def command(tmp_path: Path) -> tuple[subprocess.Popen[bytes], list[int]]:
    """A command with a child and a grandchild."""
    write_child(tmp_path)
    started = subprocess.Popen([sys.executable, "-c", COMMAND, str(tmp_path)], start_new_session=True)
    until((tmp_path / "pids.json").exists, "the child starts")
    return started, json.loads((tmp_path / "pids.json").read_text())


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_children_and_theirs_end_with_the_command(
    command: tuple[subprocess.Popen[bytes], list[int]], number: signal.Signals
) -> None:
    started, pids = command
    assert all(map(lives, pids))
    started.send_signal(number)
    started.wait()
    until(lambda: not any(map(lives, pids)), "nobody is left")


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_the_pipe_alone_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Linux's signal, as on other systems: the child ignores the signal that it sends itself, and is killed."""
    write_child(tmp_path, "leave=__import__('signal').SIGCONT")
    started = subprocess.Popen([sys.executable, "-c", COMMAND, str(tmp_path)], start_new_session=True)
    until((tmp_path / "pids.json").exists, "the child starts")
    pids = json.loads((tmp_path / "pids.json").read_text())
    started.kill()
    started.wait()
    until(lambda: not any(map(lives, pids)), "nobody is left")


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_the_command_hears_of_its_child_and_of_its_end(tmp_path: Path) -> None:
    write_child(tmp_path)
    supervisor = Supervisor(tmp_path / "flower.log")
    with supervisor.supervise():
        supervisor.start("child", [sys.executable, str(tmp_path / "child.py")], os.environ, "a secret")
        event = supervisor.next_event()
        assert event is not None
        assert (event.child, event.values["secret"]) == ("child", "a secret")
        pids = event.values["pids"]
        until(lambda: "child: a line for the log" in (tmp_path / "flower.log").read_text(), "its output is kept")
        os.kill(pids[0], signal.SIGKILL)
        event = supervisor.next_event()
        assert event is not None
        assert describe_exit(event.values["ended"]) == "was killed by signal 9"
        until(lambda: not any(map(lives, pids)), "what it had started is gone, too")


def test_the_log_begins_anew_before_it_fills_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwise.sites.transport.supervisor.LOG_BYTES", 1000)
    supervisor = Supervisor(tmp_path / "flower.log")
    for k in range(100):
        supervisor.log(f"line {k}")
    supervisor.end()
    files = sorted(tmp_path.glob("flower.log*"))
    assert len(files) == 4
    assert all(path.stat().st_size <= 1000 for path in files)
    assert "line 99" in (tmp_path / "flower.log").read_text()


def test_a_folder_has_one_command_which_can_be_stopped(
    tmp_path: Path, command: tuple[subprocess.Popen[bytes], list[int]]
) -> None:
    started, _ = command
    assert read_status(tmp_path) == {"pid": started.pid}
    refused = re.escape(f"is already running (process {started.pid}): to stop it, run headwise site stop")
    with pytest.raises(RunError, match=refused), claim_folder(tmp_path, "site"):
        raise AssertionError
    assert read_status(tmp_path) == {"pid": started.pid}, "who is refused takes nothing away"
    assert stop_command(tmp_path)
    started.wait()
    assert not (tmp_path / STATUS).exists()
    assert read_status(tmp_path) is None
    assert not stop_command(tmp_path)


def test_a_killed_command_leaves_its_folder_free(
    tmp_path: Path, command: tuple[subprocess.Popen[bytes], list[int]]
) -> None:
    started, _ = command
    started.kill()
    started.wait()
    until(lambda: read_status(tmp_path) is None, "the system lets go")
    with claim_folder(tmp_path, "site"):
        assert read_status(tmp_path) is not None


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_who_has_a_port_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(superlink, "PORT_SECONDS", 0.0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError) as error:
            superlink.wait_until_free("--port", "127.0.0.1", port)
    said = str(error.value)
    assert said.startswith(f"--port is {port}, but process {os.getpid()} (")
    assert "python" in said
    assert said.endswith("listens there: stop it, or choose another port.")
    superlink.wait_until_free("--port", "127.0.0.1", port)
    superlink.wait_until_free("--port", "127.0.0.1", free_port())


def test_an_address_of_another_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(superlink, "PORT_SECONDS", 0.0)
    with pytest.raises(ConfigError, match=r"--port is 8000, but it can't be used .Cannot assign requested address.:"):
        superlink.wait_until_free("--port", "192.0.2.1", 8000)
