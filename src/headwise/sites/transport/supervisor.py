"""The processes of one command, `headwise site start` or `server start`: they start, report and end together.

A command's children end with it, however it ends. It holds the writing end of their standard input, which their own
children inherit: once the command is gone, even by `kill -9`, whoever reads there sees the end. On Linux, the system
itself kills the worker, whatever it computes. Flower's commands are children as well, run as
`python -m headwise.sites.transport.supervisor COMMAND ...`.

A child uses `bind_life`, `read_secret` and `report_event`; the command uses the rest.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import entry_points
from logging.handlers import RotatingFileHandler
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any, NamedTuple

from ...disk.files import explain_write_errors, read_json
from ...disk.jsontext import to_json
from ...errors import RunError
from .envelope import make_printable
from .superlink import wait_until_free

EVENTS = "HEADWISE_EVENTS"
"""environment variable: the file descriptor on which a child reports to the command"""
PR_SET_PDEATHSIG = 1
PIPE_CLOSED = select.POLLHUP | select.POLLERR | select.POLLNVAL
KILL_SECONDS = 2.0
"""seconds for an orphan to leave by itself before it and its own children are killed"""
LEAVE_SECONDS = 10.0
"""seconds that a child gets to leave when the command ends"""
POLL_SECONDS = 0.2
LOG_BYTES = 5_000_000
"""size of a log before a new one begins"""
LOG_BACKUPS = 3
"""old logs that are kept"""
HEALTH_SECONDS = 10.0
"""seconds that a monitor gets to send its request"""
LOCK = "running.lock"
STATUS = "running.json"


def bind_life(leave: signal.Signals = signal.SIGTERM) -> None:
    """End this process once the command is gone: by the signal `leave`, and after a while by SIGKILL."""
    if sys.platform == "linux" and leave == signal.SIGKILL:  # any other signal could end us before our own children
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(leave))
    threading.Thread(target=_end_with_command, args=(leave,), daemon=True).start()


def _end_with_command(leave: signal.Signals) -> None:
    line = select.poll()
    line.register(0, 0)  # reads only the end of the stream: what is written there is for another process
    while not any(flags & PIPE_CLOSED for _, flags in line.poll()):
        pass
    os.killpg(0, leave)  # each child of the command has a group of its own
    time.sleep(KILL_SECONDS)
    os.killpg(0, signal.SIGKILL)


def read_secret() -> str:
    """The secret that the command wrote to this child's standard input."""
    secret = b""
    while not secret.endswith(b"\n"):
        if not (byte := os.read(0, 1)):
            raise SystemExit(1)  # the command is already gone
        secret += byte
    return secret.decode().strip()


def report_event(**event: Any) -> None:
    os.write(int(os.environ[EVENTS]), (to_json(event) + "\n").encode())


class ChildEvent(NamedTuple):
    """What a child reports, or that it `ended`; without a child, the `stop` signal that the command received."""

    child: str
    values: Mapping[str, Any]


class Supervisor:
    """Use it in the main thread: on Linux, children are killed when the thread that started them ends."""

    def __init__(self, log: Path) -> None:
        with explain_write_errors(log):
            writer = RotatingFileHandler(log, maxBytes=LOG_BYTES, backupCount=LOG_BACKUPS, encoding="utf-8")
        writer.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        self._log = logging.Logger("supervisor")
        self._log.addHandler(writer)
        self._events = SimpleQueue[ChildEvent]()
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._threads: list[threading.Thread] = []

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str], secret: str = "") -> None:
        """Start a child whose life is bound to ours; it reads `secret` first."""
        stdin, lifeline = os.pipe()
        reports, events = os.pipe()
        os.write(lifeline, f"{secret}\n".encode())
        child = subprocess.Popen(
            command,
            env={**environment, EVENTS: str(events)},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(events,),
            process_group=0,
        )
        os.close(stdin)
        os.close(events)
        self._children[name] = child
        assert child.stdout is not None
        logger = threading.Thread(target=self._log_output, args=(name, child.stdout), daemon=True)
        receiver = threading.Thread(target=self._receive, args=(name, reports), daemon=True)
        waiter = threading.Thread(target=self._wait, args=(name, child, lifeline, receiver), daemon=True)
        for thread in (logger, receiver, waiter):
            thread.start()
            self._threads.append(thread)

    def next_event(self, seconds: float | None = None) -> ChildEvent | None:
        """What happens next; None if nothing does within `seconds`."""
        try:
            return self._events.get(timeout=seconds)
        except Empty:
            return None

    def log(self, text: str) -> None:
        self._log.info("headwise: %s", text)

    @contextmanager
    def supervise(self) -> Iterator[None]:
        """Turn signals into events, and end all children at the end."""

        def receive_signal(number: int, *_: object) -> None:
            self._events.put(ChildEvent("", {"stop": number}))

        # with nohup, a terminal that closes is no reason to end
        heeded = [s for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) if signal.getsignal(s) != signal.SIG_IGN]
        before = {s: signal.signal(s, receive_signal) for s in heeded}
        try:
            yield
        finally:
            self.end()
            for s, handler in before.items():
                signal.signal(s, handler)

    def end(self) -> None:
        """Terminate the children in the order in which they started, and kill those that stay."""
        left = [child for child in self._children.values() if child.poll() is None]
        for child in left:
            child.terminate()
        until = time.monotonic() + LEAVE_SECONDS
        for child in left:
            with suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, until - time.monotonic()))
            _kill_group(child.pid)
            child.wait()
        for thread in self._threads:
            thread.join(POLL_SECONDS)
        for writer in self._log.handlers:
            writer.close()

    def _log_output(self, name: str, output: IO[bytes]) -> None:
        with output:
            for line in output:
                self._log.info("%s: %s", name, make_printable(line.decode(errors="replace").rstrip()))

    def _receive(self, name: str, reports: int) -> None:
        with open(reports, encoding="utf-8") as lines:
            for line in lines:
                self._events.put(ChildEvent(name, json.loads(line)))

    def _wait(self, name: str, child: subprocess.Popen[bytes], lifeline: int, receiver: threading.Thread) -> None:
        code = child.wait()
        _kill_group(child.pid)  # its own children must not outlive it
        os.close(lifeline)
        receiver.join(LEAVE_SECONDS)  # its last reports come before its end
        self._events.put(ChildEvent(name, {"ended": code}))


def _kill_group(leader: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def describe_exit(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"


@contextmanager
def claim_folder(home: Path, group: str) -> Iterator[None]:
    """Lock this folder for as long as the command runs; the system releases the lock however the command dies."""
    path = home / LOCK
    with explain_write_errors(path):
        file = path.open("w")
    with file:
        if not _lock(file, fcntl.LOCK_EX, tries=5):  # `read_status` may hold it for a moment
            pid = _read(home).get("pid")
            raise RunError(f"{home} is already running (process {pid}): to stop it, run headwise {group} stop {home}.")
        try:
            yield
        finally:
            (home / STATUS).unlink(missing_ok=True)


def read_status(home: Path) -> Mapping[str, Any] | None:
    """The status of the command that holds this folder; None if none does."""
    path = home / LOCK
    if not path.exists():
        return None
    with explain_write_errors(path), path.open() as file:
        return None if _lock(file, fcntl.LOCK_SH) else _read(home)


def stop_command(home: Path) -> bool:
    """End the command that holds this folder; False if none does."""
    number: signal.Signals | None = signal.SIGTERM
    since = time.monotonic()
    if read_status(home) is None:
        return False
    while (status := read_status(home)) is not None:
        if number and (pid := status.get("pid")):
            with suppress(ProcessLookupError):
                os.kill(int(pid), number)
            number = None
        if time.monotonic() - since > 2 * LEAVE_SECONDS:
            number = signal.SIGKILL  # its children end with it
            since = time.monotonic()
        time.sleep(POLL_SECONDS)
    return True


def _read(home: Path) -> Mapping[str, Any]:
    return read_json(home / STATUS) if (home / STATUS).exists() else {}


def _lock(file: IO[str], mode: int, tries: int = 1) -> bool:
    for _ in range(tries):
        with suppress(BlockingIOError):
            fcntl.flock(file, mode | fcntl.LOCK_NB)
            return True
        time.sleep(POLL_SECONDS if tries > 1 else 0)
    return False


@dataclass(frozen=True)
class Health:
    trouble: str
    """empty if all is well"""
    gauges: Mapping[str, tuple[float, str]] = field(default_factory=dict[str, tuple[float, str]])
    """the value and meaning of each"""

    def metrics(self) -> str:
        """Prometheus's text format."""
        gauges = {"headwise_healthy": (float(not self.trouble), "1 if /healthz says ok"), **self.gauges}
        lines = (f"# HELP {k} {what}\n# TYPE {k} gauge\n{k} {value:.17g}\n" for k, (value, what) in gauges.items())
        return "".join(lines)


@contextmanager
def serve_health(port: int | None, check: Callable[[], Health]) -> Iterator[None]:
    """Serve /healthz (200 or 503) and /metrics on loopback until the block ends; without a port, do nothing."""
    if port is None:
        yield
        return

    class Handler(BaseHTTPRequestHandler):
        timeout = HEALTH_SECONDS

        def do_GET(self) -> None:
            health = check()
            if self.path == "/healthz":
                self._send(503 if health.trouble else 200, f"{health.trouble or 'ok'}\n")
            elif self.path == "/metrics":
                self._send(200, health.metrics(), "text/plain; version=0.0.4; charset=utf-8")
            else:
                self._send(404, "the paths are /healthz and /metrics\n")

        def _send(self, code: int, text: str, kind: str = "text/plain; charset=utf-8") -> None:
            data = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: monitors ask every few seconds."""

    wait_until_free("--health", "127.0.0.1", port)
    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def run_flower_command() -> None:
    """Run one of Flower's commands in this process, bound to the life of ours."""
    bind_life()
    sys.argv = sys.argv[1:]
    (command,) = entry_points(group="console_scripts", name=sys.argv[0])
    command.load()()


if __name__ == "__main__":
    run_flower_command()
