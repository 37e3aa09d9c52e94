"""`headwise site start` and `status`.

A running site has a node, which talks to the server, and a worker, which trains; either is restarted if it ends.
"""

from __future__ import annotations

import os
import secrets
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import __version__
from ...disk.files import read_json, write_json
from ...disk.jsontext import to_json
from ...errors import ConfigError, HeadwiseError, RunError, pluralize
from ...settings.fields import Natural, build
from ..transport import supervisor
from ..transport.envelope import format_time, make_printable, now
from ..transport.superlink import Problem, find_problem, flower_environment, split_address

if TYPE_CHECKING:
    from .ledger import PrivacySpent

RETRY_SECONDS = 5.0
"""between attempts to reach the server"""
LOG = "flower.log"
ACTIVITY = "activity.json"
GAUGES = {
    "round": "round of the latest run",
    "rounds": "rounds that the latest run has",
    "messages": "messages answered in the latest run",
    "sent": "bytes sent in the latest run",
}
MOST_DEATHS = 5
"""workers that may die in a row without having become ready"""


@dataclass(frozen=True)
class Activity:
    """What the site has done in its latest run; its worker records it."""

    run: str = ""
    method: str = ""
    data: str = ""
    round: Natural = 0
    rounds: Natural = 0
    sent: Natural = 0
    """bytes in this run"""
    messages: Natural = 0
    at: str = ""
    """when the latest message was answered"""
    line: str = ""
    """what was printed about it"""


def read_activity(home: Path) -> Activity:
    try:
        return build(Activity, read_json(home / ACTIVITY))
    except (FileNotFoundError, HeadwiseError):
        return Activity()  # no message came yet


@dataclass
class RunningSite:
    home: Path
    superlink: str
    ca: Path | None
    trust: ssl.SSLContext | None
    say: Callable[[str], None]
    health: int | None = None
    """port of /healthz and /metrics, on loopback"""
    _supervisor: supervisor.Supervisor = field(init=False)
    _status: dict[str, Any] = field(init=False)
    _secret: str = field(default_factory=lambda: secrets.token_hex(32))
    _problem: str = ""
    """the last problem that was reported, so that it is not repeated"""
    _deaths: int = 0

    def run(self) -> int:
        """Work until stopped; return the exit code."""
        with supervisor.claim_folder(self.home, "site"):
            self._supervisor = supervisor.Supervisor(self.home / LOG)
            self._status = {"pid": os.getpid(), "since": now(), "server": self.superlink, "version": __version__}
            self._update_status(connected=None, why="is starting")
            with self._supervisor.supervise(), supervisor.serve_health(self.health, self.check_health):
                return self._loop()

    def check_health(self) -> supervisor.Health:
        activity = read_activity(self.home)
        gauges = {f"headwise_site_{name}": (float(getattr(activity, name)), what) for name, what in GAUGES.items()}
        trouble = "" if self._status.get("connected") else f"not connected: {self._status.get('why')}"
        return supervisor.Health(trouble, gauges)

    def _loop(self) -> int:
        self._tell(f"connecting to {self.superlink}")
        self._start_worker()
        retry_at: float | None = time.monotonic()
        while True:
            event = self._supervisor.next_event(None if retry_at is None else max(0.0, retry_at - time.monotonic()))
            if event is None:
                retry_at = None if self._start_node() else time.monotonic() + RETRY_SECONDS
            elif "stop" in event.values:
                self._tell("stopping: this site no longer takes part")
                return 0
            elif event.child == "node" and "ended" in event.values:
                self._update_status(connected=None)
                retry_at = time.monotonic() + (RETRY_SECONDS if self._problem else 0.5)
                if not self._problem:
                    ended = supervisor.describe_exit(event.values["ended"])
                    self._report(f"the node {ended}: starting it again (see {self.home / LOG}).")
            else:
                self._handle(event)

    def _start_worker(self) -> None:
        command = [sys.executable, "-m", "headwise.sites.site.worker", str(self.home)]
        self._supervisor.start("worker", command, flower_environment(self.home), self._secret)

    def _start_node(self) -> bool:
        """Start the node if the server can be reached."""
        host, port = split_address(self.superlink)
        if problem := find_problem(host, port, self.trust):
            self._report_problem(problem)
            return False
        ca = None if self.ca is None else str(self.ca)
        settings = to_json({"home": str(self.home), "superlink": self.superlink, "ca": ca})
        command = [sys.executable, "-m", "headwise.sites.transport.node", settings]
        self._supervisor.start("node", command, flower_environment(self.home), self._secret)
        return True

    def _handle(self, event: supervisor.ChildEvent) -> None:
        values: dict[str, Any] = {k: make_printable(v) if isinstance(v, str) else v for k, v in event.values.items()}
        if "say" in values:
            self._tell(values["say"])
        elif "why" in values:
            self._report_problem(Problem(values["why"], values["lasting"]))
        elif "connected" in values or "back" in values:
            self._problem = ""
            self._update_status(connected=now(), why=None)
            self._tell(f"connected to {self.superlink}")
        elif "lost" in values:
            self._report(f"the server {self.superlink} does not answer: trying again.")
        elif "wrong" in values:
            raise ConfigError(values["wrong"])
        elif "ready" in values:
            self._deaths = 0
        elif event.child == "worker" and "ended" in values:
            self._deaths += 1
            ended = supervisor.describe_exit(values["ended"])
            if self._deaths > MOST_DEATHS:
                raise RunError(f"the worker {ended} {self._deaths} times: see {self.home / LOG}.")
            self._tell(f"the worker {ended}: starting another one, which continues from the disk")
            self._start_worker()

    def _report_problem(self, problem: Problem) -> None:
        if problem.lasting:
            raise RunError(problem.why)
        self._report(f"{problem.why} Trying again.")

    def _report(self, why: str) -> None:
        """Say why the site is not connected, once."""
        if why != self._problem:
            self._problem = why
            self._tell(why)
        self._update_status(connected=None, why=why)

    def _tell(self, text: str) -> None:
        self._supervisor.log(text)
        self.say(text)

    def _update_status(self, **changes: Any) -> None:
        self._status |= changes
        write_json(self.home / supervisor.STATUS, self._status)


@dataclass(frozen=True)
class SiteStatus:
    running: Mapping[str, Any] | None
    """the status of the running command; None if none runs"""
    activity: Activity
    spent: tuple[PrivacySpent, ...]

    def to_plain(self) -> dict[str, Any]:
        return {"running": self.running, "activity": asdict(self.activity), "spent": [s._asdict() for s in self.spent]}

    def lines(self) -> Iterator[str]:
        running = self.running
        if running is None:
            yield "not running"
        else:
            since = format_time(str(running.get("since")))
            connected = running.get("connected")
            yield f"running since {since} (process {running.get('pid')}), server {running.get('server')}"
            yield f"connected since {format_time(connected)}" if connected else f"not connected: {running.get('why')}"
        done = self.activity
        if done.run:
            latest = f"round {done.round} of {done.rounds} at {format_time(done.at)}"
            yield f"{done.run}: {done.method} on {done.data}, {latest}"
            yield f"sent {done.sent / 1000:,.1f} KB in {pluralize(done.messages, 'message')} of this run"
        else:
            yield "no orders yet, and nothing sent"
        yield from (each.line() for each in self.spent)


def site_status(home: Path) -> SiteStatus:
    from .ledger import privacy_spent  # imported here because it needs torch

    return SiteStatus(supervisor.read_status(home), read_activity(home), tuple(privacy_spent(home / "site.toml")))
