"""A server and sites on loopback, started as a person would, and what their processes cost: for other benchmarks."""

from __future__ import annotations

import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import headwise as hw
from headwise.sites.keys import write_node_key

TICKS = os.sysconf("SC_CLK_TCK")
PAUSE = 0.2
"""seconds between looks at the processes: the first round's end is noticed that late"""
WAIT = "1800"
"""seconds for all sites to connect"""


class Case(NamedTuple):
    data: str
    model: str
    clients: int
    more: str = ""
    """TOML for the experiment"""


class Deployed(NamedTuple):
    run: hw.Run
    seconds: list[float]
    """of each round"""
    cpu: dict[str, float]
    """CPU seconds of each kind of process for a round, without the first"""
    memory: dict[str, int]
    """most bytes that each kind of process had at once"""

    @property
    def usual(self) -> float:
        """Seconds of a round, without the first."""
        return statistics.median(self.seconds[1:])


class Meter(threading.Thread):
    """Watches the processes of a deployment: CPU time at the end of each round, and memory. Linux only."""

    def __init__(self, home: Path) -> None:
        super().__init__(daemon=True)
        self.sessions: dict[int, str] = {}
        """processes that lead a session, and what they are"""
        self.memory: dict[str, int] = {}
        self._rounds = home / "run" / "rounds.jsonl"
        self._ended = threading.Event()
        self._at: dict[int, Counter[str]] = {}
        """CPU seconds by kind of process, by the number of rounds that have ended"""

    def run(self) -> None:
        while not self._ended.is_set():
            self.look()
            self._ended.wait(PAUSE)

    def look(self) -> None:
        rounds = self._rounds.read_bytes().count(b"\n") if self._rounds.exists() else 0
        spent = Counter[str]()
        for session, pid, cpu in processes():
            if session in self.sessions:
                name = f"{self.sessions[session]}: {kind(pid)}"
                spent[name] += cpu
                self.memory[name] = max(self.memory.get(name, 0), memory_of(pid))
        self._at.setdefault(rounds, spent)

    def per_round(self) -> dict[str, float]:
        """From the end of the first round to that of the last."""
        self._ended.set()
        self.join()
        first = min(k for k in self._at if k)
        last = max(self._at)
        return {name: (self._at[last][name] - self._at[first][name]) / (last - first) for name in self._at[last]}


def processes() -> list[tuple[int, int, float]]:
    """Session, number and CPU seconds of every process, with those of its children that have ended."""
    processes: list[tuple[int, int, float]] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        processes.append((int(words[3]), int(path.parent.name), sum(map(int, words[11:15])) / TICKS))
    return processes


def kind(pid: int) -> str:
    """What a process is, from its command."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "gone"
    known = ("flower-superlink", "flower-superexec", "flwr-serverapp", "flower-supernode", "flwr-clientapp")
    ours = {"headwise.sites.site.worker": "worker", "headwise.sites.transport.node": "node"}
    for word in words:
        name = word.rpartition("/")[2]
        if name in known or name in ours:
            return ours.get(name, name)
    return "headwise"


def memory_of(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0)


def contention() -> float:
    """Wall over CPU time of a busy loop: 1 on an idle machine."""
    wall = time.perf_counter()
    cpu = time.process_time()
    while time.process_time() - cpu < 0.5:
        pass
    return (time.perf_counter() - wall) / 0.5


def deployed(case: Case, home: Path, *, rounds: int, sites: int = 0, python: str = sys.executable) -> Deployed:
    """Run an experiment whose clients are dealt to `sites`; without, each has a thin one.

    `python` can be another checkout's interpreter.
    """
    headwise = [python, "-m", "headwise"]
    head = f'method = "fedper"\ndata = "{case.data}"\npartition = "natural"\nmodel = "{case.model}"\n'
    head += f'clients = {case.clients}\nrounds = {rounds}\nevaluate = {{ moments = ["post"] }}\n'
    (home / "exp.toml").write_text(head + case.more)
    port = free_port()
    meter = Meter(home)
    started = list[subprocess.Popen[bytes]]()

    def start(name: str, *command: str) -> None:
        with (home / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, cwd=home, start_new_session=True, stdout=log, stderr=log)
        started.append(process)
        meter.sessions[process.pid] = name.rstrip("0123456789")

    try:
        start("server", *headwise, "server", "start", "server", "--port", str(port))
        wait_for(port)
        if sites:
            for k in range(sites):
                write_site(home / f"site{k}", case.data, [c for c in range(case.clients) if c % sites == k])
                write_node_key(home / f"site{k}" / "site.key")
            keys = [f"site{k}/site.key.pub" for k in range(sites)]
            subprocess.run(
                [*headwise, "server", "register", "server", *keys], cwd=home, check=True, capture_output=True
            )
            where = ("--superlink", f"127.0.0.1:{port}", "--ca", "server/ca.crt")
            for k in range(sites):
                start(f"site{k}", *headwise, "site", "start", f"site{k}", *where, *node_port(headwise))
        else:
            write_site(home / "thin", case.data, [*range(case.clients)])
            start("thin", python, str(Path(__file__).with_name("thin.py")), str(home), str(port))
        meter.start()
        deploy = [*headwise, "deploy", "exp.toml", "--server", "server", "--out", "run", "--wait", WAIT, "--json"]
        subprocess.run(deploy, cwd=home, check=True, stdout=subprocess.DEVNULL)
        run = hw.Run(home / "run")
        return Deployed(run, [row["seconds"]["round"] for row in run.rounds], meter.per_round(), meter.memory)
    finally:
        for process in reversed(started):
            os.killpg(process.pid, signal.SIGTERM)
        for process in started:
            process.wait()


def node_port(headwise: list[str]) -> list[str]:
    """Nodes of older versions want a port each."""
    shown = subprocess.run([*headwise, "site", "start", "--help"], check=True, capture_output=True, text=True)
    return ["--port", str(free_port())] if "--port" in shown.stdout else []


def write_site(folder: Path, data: str, clients: list[int]) -> None:
    folder.mkdir()
    own = [f'[[clients]]\nid = {c}\nsource = "{data}:only={c}"\n' for c in clients]
    (folder / "site.toml").write_text(f'name = "{folder.name}"\ndata = "synthetic"\n{"".join(own)}')


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def wait_for(port: int) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        with socket.socket() as line:
            if line.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(PAUSE)
    raise TimeoutError(f"the server does not listen on port {port}")
