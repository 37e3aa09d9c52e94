"""`headwise site start`: a node that talks to the server and a worker that trains; what ends is started again."""

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
from ..transport.family import STATUS, Family, News, claim, how
from ..transport.health import Health, health_endpoint
from ..transport.processes import environment, split_address
from ..transport.reach import Problem, problem

AGAIN = 5.0
"""seconds between attempts to reach the server"""
LOG = "flower.log"
ACTIVITY = "activity.json"
"""where the worker keeps what it has done"""
FIGURES = {
    "round": "round of the latest run",
    "rounds": "rounds that the latest run has",
    "messages": "messages answered in the latest run",
    "sent": "bytes sent in the latest run",
}
DEATHS = 5
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
    _family: Family = field(init=False)
    _status: dict[str, Any] = field(init=False)
    _secret: str = field(default_factory=lambda: secrets.token_hex(32))
    _said: str = ""
    """the last problem that was reported: it is not repeated"""
    _deaths: int = 0

    def run(self) -> int:
        """Work until told to stop; the exit code."""
        with claim(self.home, "site"):
            self._family = Family(self.home / LOG)
            self._status = {"pid": os.getpid(), "since": now(), "server": self.superlink, "version": __version__}
            self._keep(connected=None, why="is starting")
            with self._family.alive(), health_endpoint(self.health, self.look):
                return self._loop()

    def look(self) -> Health:
        """How the site is, for monitors."""
        status = self._status
        try:
            done: dict[str, Any] = read_json(self.home / ACTIVITY)
        except (FileNotFoundError, HeadwiseError):
            done = {}  # nothing was asked yet
        figures = {f"headwise_site_{name}": (float(done.get(name, 0)), what) for name, what in FIGURES.items()}
        return Health("" if status.get("connected") else f"not connected: {status.get('why')}", figures)

    def _loop(self) -> int:
        self._tell(f"connecting to {self.superlink}")
        self._start_worker()
        again: float | None = time.monotonic()
        while True:
            news = self._family.next(None if again is None else max(0.0, again - time.monotonic()))
            if news is None:
                again = time.monotonic() + AGAIN if self._start_node() else None
            elif "told" in news.event:
                self._tell("told to stop: this site takes no part any more")
                return 0
            elif news.name == "node" and "ended" in news.event:
                self._keep(connected=None)
                again = time.monotonic() + (AGAIN if self._said else 0.5)
                if not self._said:
                    self._report(f"the node {how(news.event['ended'])}: starting it again (see {self.home / LOG}).")
            else:
                self._heed(news)

    def _start_worker(self) -> None:
        command = [sys.executable, "-m", "headwise.sites.site.worker", str(self.home)]
        self._family.start("worker", command, environment(self.home), self._secret)

    def _start_node(self) -> bool:
        """Start the node if the server can be reached; whether to try again."""
        host, port = split_address(self.superlink)
        if found := problem(host, port, self.trust):
            self._refused(found)
            return True
        ca = None if self.ca is None else str(self.ca)
        text = to_json({"home": str(self.home), "superlink": self.superlink, "ca": ca})
        command = [sys.executable, "-m", "headwise.sites.transport.node", text]
        self._family.start("node", command, environment(self.home), self._secret)
        return False

    def _heed(self, news: News) -> None:
        event: dict[str, Any] = {k: printable(v) if isinstance(v, str) else v for k, v in news.event.items()}
        if "say" in event:
            self._tell(event["say"])
        elif "why" in event:
            self._refused(Problem(event["why"], event["lasting"]))
        elif "connected" in event or "back" in event:
            self._said = ""
            self._keep(connected=now(), why=None)
            self._tell(f"connected to {self.superlink}")
        elif "lost" in event:
            self._report(f"the server {self.superlink} does not answer: trying again.")
        elif "wrong" in event:
            raise ConfigError(event["wrong"])
        elif "ready" in event:
            self._deaths = 0
        elif news.name == "worker" and "ended" in event:
            self._deaths += 1
            if self._deaths > DEATHS:
                raise RunError(f"the worker {how(event['ended'])} {self._deaths} times: see {self.home / LOG}.")
            self._tell(f"the worker {how(event['ended'])}: starting another one, which continues from the disk")
            self._start_worker()

    def _refused(self, found: Problem) -> None:
        if found.lasting:
            raise RunError(found.why)
        self._report(f"{found.why} Trying again.")

    def _report(self, why: str) -> None:
        """Say why the site is not connected, once."""
        if why != self._said:
            self._said = why
            self._tell(why)
        self._keep(connected=None, why=why)

    def _tell(self, text: str) -> None:
        self._family.note(text)
        self.say(text)

    def _keep(self, **changes: Any) -> None:
        self._status |= changes
        write_json(self.home / STATUS, self._status)
