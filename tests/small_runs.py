"""Small experiments, complete or cut short, and ways to damage files."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import headwise as hw
from headwise.app.launch import run_or_resume
from headwise.engine.events import Event, RoundEnded

FLAGS = {
    "method": "fedper",
    "data": "synthetic:160:4:6:sites=2",
    "partition": "dirichlet:0.5",
    "model": "mlp:6",
    "split": "8:1:1",
    "clients": "5",
}


def experiment(rounds: int = 5, **changes: Any) -> hw.Experiment:
    """Five clients, three of them in each round, each with a state of its own."""
    usual = {**FLAGS, "clients": 5, "rounds": rounds, "sampling": {"ratio": 0.6}}
    return hw.Experiment(**{**usual, **changes})


def arguments(rounds: int, out: Path) -> list[str]:
    """The same experiment as command-line arguments."""
    flags = {**FLAGS, "rounds": str(rounds), "ratio": "0.6", "out": str(out)}
    return ["run", *(text for name, value in flags.items() for text in (f"--{name}", value))]


def start(*args: str, **settings: Any) -> subprocess.Popen[str]:
    """Start the command line in its own process."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-m", "headwise", *args], **{**pipes, **settings})


def die(asked: hw.Experiment, folder: Path, first: int, later: float, last: int) -> None:
    """Start or resume a run in a process that gets killed.

    It dies `later` seconds after the event `first`, or at the event `last` if that comes sooner. This is the process's
    own CPU time, so that it gets equally far on a busy machine.
    """
    seen = itertools.count()

    def watch(event: Event) -> None:
        number = next(seen)
        if number == first:
            signal.setitimer(signal.ITIMER_PROF, later)  # nobody handles its signal, so it ends the process
        if number == last:
            os.kill(os.getpid(), signal.SIGKILL)

    run_or_resume(asked, folder, observers=[watch])


def stop_after(folder: Path, rounds: int, of: int = 5) -> hw.Run:
    """A run that looks as if it was killed after this many rounds."""

    class Killed(BaseException):
        pass

    def kill(event: Event) -> None:
        if isinstance(event, RoundEnded) and event.row["round"] == rounds:
            raise Killed

    try:
        hw.run(experiment(of), folder, observers=[kill])
    except Killed:
        return hw.Run(folder)
    raise AssertionError("it should have been killed")


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Every file below the folder, byte for byte."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def flip(path: Path, at: float = 0.5) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[int(len(data) * at)] ^= 4
    path.write_bytes(data)


def cut(path: Path) -> None:
    """Truncate a file to its first half."""
    os.truncate(path, path.stat().st_size // 2)
