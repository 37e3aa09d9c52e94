"""`headwise site start`: a node that talks to the server and a worker that trains; one that ends is started again."""

from __future__ import annotations

import os
import secrets
import ssl
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ... import __version__
from ...disk.files import read_json, write_json
from ...disk.jsontext import to_json
from ...errors import ConfigError, HeadwiseError, RunError
from ..transport.envelope import now, printable
from ..transport.superlink import Problem, find_problem, flower_environment, split_address
from ..transport.supervisor import STATUS, ChildEvent, Health, Supervisor, claim_folder, describe_exit, serve_health

RETRY_SECONDS = 5.0
"""between attempts to reach the server"""
LOG = "flower.log"
ACTIVITY = "activity.json"
"""where the worker records what it has done"""
GAUGES = {
    "round": "round of the latest run",
    "rounds": "rounds that the latest run has",
    "messages": "messages answered in the latest run",
    "sent": "bytes sent in the latest run",
}
MOST_DEATHS = 5
"""workers that may die in a row without having become ready"""


@dataclass
class RunningSite:
    home: Path
    superlink: str
    ca: Path | None
    trust: ssl.SSLContext | None
    say: Callable[[str], None]
    health: int | None = None
    """port of /healthz and /metrics, on loopback"""
    _supervisor: Supervisor = field(init=False)
    _status: dict[str, Any] = field(init=False)
    _secret: str = field(default_factory=lambda: secrets.token_hex(32))
    _problem: str = ""
    """the last one that was reported: it is not repeated"""
    _deaths: int = 0

    def run(self) -> int:
        """Work until stopped; return the exit code."""
        with claim_folder(self.home, "site"):
            self._supervisor = Supervisor(self.home / LOG)
            self._status = {"pid": os.getpid(), "since": now(), "server": self.superlink, "version": __version__}
            self._update_status(connected=None, why="is starting")
            with self._supervisor.supervise(), serve_health(self.health, self.check_health):
                return self._loop()

    def check_health(self) -> Health:
        try:
            activity: dict[str, Any] = read_json(self.home / ACTIVITY)
        except (FileNotFoundError, HeadwiseError):
            activity = {}  # no message came yet
        gauges = {f"headwise_site_{name}": (float(activity.get(name, 0)), what) for name, what in GAUGES.items()}
        trouble = "" if self._status.get("connected") else f"not connected: {self._status.get('why')}"
        return Health(trouble, gauges)

    def _loop(self) -> int:
        self._tell(f"connecting to {self.superlink}")
        self._start_worker()
        retry_at: float | None = time.monotonic()
        while True:
            event = self._supervisor.next_event(None if retry_at is None else max(0.0, retry_at - time.monotonic()))
            if event is None:
                retry_at = None if self._start_node() else time.monotonic() + RETRY_SECONDS
            elif "stop" in event.values:
                self._tell("stopping: this site takes no part any more")
                return 0
            elif event.child == "node" and "ended" in event.values:
                self._update_status(connected=None)
                retry_at = time.monotonic() + (RETRY_SECONDS if self._problem else 0.5)
                if not self._problem:
                    ended = describe_exit(event.values["ended"])
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

    def _handle(self, event: ChildEvent) -> None:
        values: dict[str, Any] = {k: printable(v) if isinstance(v, str) else v for k, v in event.values.items()}
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
            ended = describe_exit(values["ended"])
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
        write_json(self.home / STATUS, self._status)
