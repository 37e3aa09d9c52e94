"""A server and sites on loopback, with real Flower processes, TLS and keys, started by Headwise's own commands."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from federations import write_site

import headwise as hw
from headwise.sites.keys import write_node_key
from waiting import PATIENCE, until

HEADWISE = (sys.executable, "-m", "headwise")
SITES = {"site0": [0, 4], "site1": [1], "site2": [2, 3]}


def free_port() -> int:
    """A port of loopback that nobody has now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Laboratory:
    """Starts processes, each in its own group with its output in a file."""

    def __init__(self, home: Path) -> None:
        self.home, self.processes = home, dict[str, subprocess.Popen[bytes]]()
        self._held: list[socket.socket] = []
        self.port = self.free_port()

    def free_port(self) -> int:
        """A port for a process that is told to use it.

        It is bound here, too, without anybody listening, so that the system gives it to nobody else in the meantime.
        """
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        self._held.append(held)
        return held.getsockname()[1]

    def do(self, *command: str, fails: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; it must succeed or, with `fails`, exit with code 2."""
        done = subprocess.run(
            [*HEADWISE, *command], cwd=self.home, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        assert done.returncode == (2 if fails else 0), done.stderr + done.stdout + self.said()
        return done

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a Headwise command and leave it running."""
        return self.spawn(name, *HEADWISE, *command)

    def spawn(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Start any command and leave it running."""
        with (self.home / f"{name}.log").open("ab") as log:
            started = subprocess.Popen(command, cwd=self.home, stdout=log, stderr=log, start_new_session=True)
        self.processes[name] = started
        return started

    def begin(self) -> None:
        """Start the server, register all sites and start them."""
        self.start("server", "server", "start", "server", "--port", str(self.port))
        until(self.listens, "the server listens")
        for name, clients in SITES.items():
            write_site(self.home / name, clients)
            write_node_key(self.home / name / "site.key")
        self.do("server", "register", "server", *(f"{name}/site.key.pub" for name in SITES))
        for name in SITES:
            self.join(name)

    def join(self, name: str, ca: str = "server/ca.crt") -> subprocess.Popen[bytes]:
        return self.start(name, "site", "start", name, "--superlink", f"127.0.0.1:{self.port}", "--ca", ca)

    def deploy(self, asked: hw.Experiment, out: str, fails: bool = False) -> subprocess.CompletedProcess[str]:
        """Train and wait until the run ends."""
        self.write(asked)
        return self.do("deploy", "exp.toml", "--server", "server", "--out", out, "--json", fails=fails)

    def write(self, asked: hw.Experiment) -> None:
        lines = {k: v for k, v in asked.to_plain().items() if v is not None and k != "engine"}
        (self.home / "exp.toml").write_text("\n".join(f"{k} = {toml(v)}" for k, v in lines.items()))

    def kill(self, name: str) -> None:
        """Kill the command alone: what it has started must end with it."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()
        self.nobody_is_left(name)

    def nobody_is_left(self, name: str) -> None:
        until(lambda: not processes_of(self.home / name, ""), f"{name} has left nobody behind")

    def said(self) -> str:
        return "\n".join(f"-- {p.name}\n{p.read_text(errors='replace')[-3000:]}" for p in self.home.glob("*.log"))

    def end(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for name in self.processes:
            self.nobody_is_left(name)
        for held in self._held:
            held.close()

    def listens(self) -> bool:
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", self.port)) == 0


def toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {toml(v)}" for k, v in value.items() if v is not None) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


@contextmanager
def laboratory(home: Path) -> Iterator[Laboratory]:
    found = Laboratory(home)
    try:
        found.begin()
        yield found
    finally:
        found.end()


def processes_of(home: Path, word: str) -> list[int]:
    """Processes below a server or site in this folder whose command contains this word."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words, settings = (path / "cmdline").read_bytes(), (path / "environ").read_bytes()
        except OSError:
            continue
        if word.encode() in words and f"FLWR_HOME={home}".encode() in settings.split(b"\0"):
            found.append(int(path.name))
    return found
