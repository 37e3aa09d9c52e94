"""The processes of one command: started, heard, logged and ended together."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any, NamedTuple

from ...disk.files import failing_clearly, read_json
from ...errors import RunError
from .envelope import printable
from .lifeline import EVENTS

LARGEST, BACKUPS = 5_000_000, 3
"""bytes of a log before a new one begins; old ones that are kept"""
PATIENCE = 10.0
"""seconds that a child gets to leave when the command ends"""
PAUSE = 0.2
LOCK, STATUS = "running.lock", "running.json"


class News(NamedTuple):
    """What a child reports, or that it `ended`; `told`: the command itself was told to stop."""

    name: str
    event: Mapping[str, Any]


class Family:
    """Use it in the main thread: on Linux, children are told when the thread that started them ends."""

    def __init__(self, log: Path) -> None:
        with failing_clearly(log):
            writer = RotatingFileHandler(log, maxBytes=LARGEST, backupCount=BACKUPS, encoding="utf-8")
        writer.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        self._log = logging.Logger("family")
        self._log.addHandler(writer)
        self._news = SimpleQueue[News]()
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._threads: list[threading.Thread] = []

    def start(self, name: str, command: Sequence[str], settings: Mapping[str, str], secret: str = "") -> None:
        """Start a child whose life is bound to ours; it reads `secret` first."""
        theirs, line = os.pipe()
        heard, events = os.pipe()
        os.write(line, f"{secret}\n".encode())
        child = subprocess.Popen(
            command,
            env={**settings, EVENTS: str(events)},
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(events,),
            process_group=0,
        )
        os.close(theirs)
        os.close(events)
        self._children[name] = child
        assert child.stdout is not None
        keeps, hears = (
            threading.Thread(target=target, args=(name, source), daemon=True)
            for target, source in ((self._keep, child.stdout), (self._hear, heard))
        )
        waits = threading.Thread(target=self._wait, args=(name, child, line, hears), daemon=True)
        for thread in (keeps, hears, waits):
            thread.start()
            self._threads.append(thread)

    def next(self, seconds: float | None = None) -> News | None:
        """What happens next; None if nothing does within `seconds`."""
        try:
            return self._news.get(timeout=seconds)
        except Empty:
            return None

    def runs(self, name: str) -> bool:
        return name in self._children and self._children[name].poll() is None

    def note(self, text: str) -> None:
        """Write a line of ours to the log."""
        self._log.info("headwise: %s", text)

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Turn signals into news, and end all children at the end."""

        def told(number: int, *_: object) -> None:
            self._news.put(News("", {"told": number}))

        heeded = [s for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) if signal.getsignal(s) != signal.SIG_IGN]
        before = {s: signal.signal(s, told) for s in heeded}  # with nohup, a terminal that closes is no reason to end
        try:
            yield
        finally:
            self.end()
            for s, handler in before.items():
                signal.signal(s, handler)

    def end(self) -> None:
        """Ask the children to leave, in the order in which they came, and kill those that do not."""
        left = {name: child for name, child in self._children.items() if child.poll() is None}
        for child in left.values():
            child.terminate()
        until = time.monotonic() + PATIENCE
        for child in left.values():
            with suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, until - time.monotonic()))
            kill_group(child.pid)
            child.wait()
        for thread in self._threads:
            thread.join(PAUSE)
        for writer in self._log.handlers:
            writer.close()

    def _keep(self, name: str, output: IO[bytes]) -> None:
        with output:
            for line in output:
                self._log.info("%s: %s", name, printable(line.decode(errors="replace").rstrip()))

    def _hear(self, name: str, heard: int) -> None:
        with open(heard, encoding="utf-8") as lines:
            for line in lines:
                self._news.put(News(name, json.loads(line)))

    def _wait(self, name: str, child: subprocess.Popen[bytes], line: int, hears: threading.Thread) -> None:
        code = child.wait()
        kill_group(child.pid)  # what it has started must not outlive it
        os.close(line)
        hears.join(PATIENCE)  # what it said last comes before its end
        self._news.put(News(name, {"ended": code}))


def kill_group(leader: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def how(code: int) -> str:
    """How a process ended, in words."""
    return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"


@contextmanager
def claim(home: Path, what: str) -> Iterator[None]:
    """Hold this folder for as long as the command lives; the system lets go however it dies."""
    path = home / LOCK
    with failing_clearly(path):
        file = path.open("w")
    with file:
        if not _locks(file, fcntl.LOCK_EX, tries=5):  # `running` may be looking
            pid = _status(home).get("pid")
            raise RunError(f"{home} is already running (process {pid}): to stop it, run headwise {what} stop {home}.")
        try:
            yield
        finally:
            (home / STATUS).unlink(missing_ok=True)


def running(home: Path) -> Mapping[str, Any] | None:
    """What the command that holds this folder says about itself; None if there is none."""
    path = home / LOCK
    if not path.exists():
        return None
    with failing_clearly(path), path.open() as file:
        return None if _locks(file, fcntl.LOCK_SH) else _status(home)


def stop(home: Path) -> bool:
    """End the command that holds this folder; False if there is none."""
    number, since = signal.SIGTERM, time.monotonic()
    if running(home) is None:
        return False
    while (found := running(home)) is not None:
        if number and (pid := found.get("pid")):
            with suppress(ProcessLookupError):
                os.kill(int(pid), number)
            number = None
        if time.monotonic() - since > 2 * PATIENCE:
            number, since = signal.SIGKILL, time.monotonic()  # its children end with it
        time.sleep(PAUSE)
    return True


def _status(home: Path) -> Mapping[str, Any]:
    return read_json(home / STATUS) if (home / STATUS).exists() else {}


def _locks(file: IO[str], how: int, tries: int = 1) -> bool:
    for _ in range(tries):
        with suppress(BlockingIOError):
            fcntl.flock(file, how | fcntl.LOCK_NB)
            return True
        time.sleep(PAUSE if tries > 1 else 0)
    return False
