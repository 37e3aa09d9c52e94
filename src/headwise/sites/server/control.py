"""Implements `headwise server` and `headwise deploy` on the server's machine: start, register, submit, status.

The run itself happens in another process, which Flower starts: see `deployment`.
"""

from __future__ import annotations

import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from ... import __version__
from ...disk.files import explain_write_errors, read_json, write_json
from ...disk.jsontext import to_json
from ...errors import ConfigError, RunError
from ...log.schema import Round
from ...runs.query import Run
from ...settings.experiment import Experiment
from ..transport import superlink
from ..transport.envelope import format_time, make_printable, now
from ..transport.superlink import NAME, run_flwr
from ..transport.supervisor import STATUS, Health, Supervisor, claim_folder, describe_exit, read_status, serve_health

LOG = "flower.log"
SITES = "sites.json"
"""file with the names of registered sites"""
LATEST = "latest.json"
"""file with the run that was submitted last"""
START_SECONDS = 0.2
"""seconds between checks whether the SuperLink listens"""
POLL_SECONDS = 0.5
"""seconds between looks at the run's folder"""
POLLS_PER_QUERY = 40
"""looks at the folder per query to Flower, each of which starts a process"""

MOST_KEY = 10_000
"""most bytes of a public key that are read"""

APP = """[project]
name = "headwise-run"
version = "1.0.0"
description = "One run of Headwise; all code is in the installed library."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "headwise"

[tool.flwr.app.components]
serverapp = "{serverapp}"
clientapp = "{clientapp}"

[tool.flwr.app.config]
order = {order}
"""


def run_server(
    home: Path,
    host: str,
    port: int,
    insecure: bool,
    say: Callable[[str], None],
    health: int | None = None,
    certify: Callable[[], None] = lambda: None,
) -> int:
    """Run Flower's SuperLink and SuperExec until stopped; return the exit code.

    `certify` is called once folder and port are ours.
    """
    with claim_folder(home, "server"):
        superlink.wait_until_free("--port", host, port)
        certify()
        superlink.write_flower_config(home, host, port, insecure)
        superlink.bind_server_app(home)
        status = {"pid": os.getpid(), "since": now(), "address": f"{host}:{port}", "version": __version__}
        write_json(home / STATUS, status)
        supervisor = Supervisor(home / LOG)
        environment = superlink.flower_environment(home)
        ready = False

        def check() -> Health:
            return Health("" if ready else "does not listen yet")

        with supervisor.supervise(), serve_health(health, check):
            say("Flower's SuperLink starts")
            supervisor.start("superlink", superlink.superlink_command(home, host, port, insecure), environment)
            supervisor.start("superexec", superlink.superexec_command(home, host, port, insecure), environment)
            while True:
                event = supervisor.next_event(None if ready else START_SECONDS)
                if event is None:
                    ready = superlink.is_listening(superlink.local_address(host).strip("[]"), port)
                    if ready:
                        say(f"listens on {host}:{port}; Flower's log is in {home / LOG}")
                elif "stop" in event.values:
                    say("stopping: sites try to come back until it starts again")
                    return 0
                elif "ended" in event.values:
                    ended = describe_exit(event.values["ended"])
                    raise RunError(f"flower-{event.child} {ended}, so the server has stopped: see {home / LOG}.")


def register_site(home: Path, key: Path) -> tuple[str, bool]:
    """Let in the site with this public key; return its name, and whether it is new."""
    _check_running(home)
    name = site_name(key)
    try:
        reply = run_flwr(home, "supernode", "register", str(key), NAME, "--name", name)
    except RunError as error:
        if "already in use" in str(error):
            return name, False
        raise
    write_json(home / SITES, {**_site_names(home), str(reply["node-id"]): name})
    return name, True


def _check_running(home: Path) -> None:
    if read_status(home) is None:
        raise RunError(f"the server in {home} does not run: start it with headwise server start.")


def site_name(key: Path) -> str:
    """The comment of a public key, which `headwise site init` sets to the site's name; else the file's own name."""
    with explain_write_errors(key), key.open("rb") as file:
        data = file.read(MOST_KEY)
    try:
        load_ssh_public_key(data)
    except (ValueError, NotImplementedError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{key} is not a public key: give the site.key.pub of headwise site init.") from error
    words = data.decode(errors="replace").split(maxsplit=2)
    if len(words) == 3:
        return make_printable(words[2].strip())
    return key.parent.name if key.name == "site.key.pub" else key.name.removesuffix(".pub")


def _site_names(home: Path) -> dict[str, str]:
    return read_json(home / SITES) if (home / SITES).exists() else {}


def submit(home: Path, experiment: Experiment, out: Path, wait: float, tell: Callable[[str], None]) -> Run:
    """Start or resume a run and wait until it ends; `home` is the server's folder."""
    _check_running(home)
    progress_file(out).unlink(missing_ok=True)
    write_json(home / LATEST, {"out": str(out)})
    before = len(Run(out).rounds) if (out / "manifest.json").exists() else 0
    with tempfile.TemporaryDirectory() as folder:
        write_app(Path(folder), experiment, out, wait, sorted(_site_names(home).values()))
        number = str(run_flwr(home, "run", folder, NAME)["run-id"])
    tell("the run is submitted; its server starts")
    follower = Follower(out, tell, before)
    for k in itertools.count(1):
        time.sleep(POLL_SECONDS)
        if follower.look() is not None:
            break
        status = _run_status(home, number, query=k % POLLS_PER_QUERY == 0)
        if status.startswith("finished") and follower.look() is None:
            raise RunError(f"the run is {status}: run flwr log {number} {NAME} --show to see why.")
    progress_file(out).unlink(missing_ok=True)
    if follower.ended:
        raise RunError(make_printable(follower.ended))
    return Run(out)


def write_app(folder: Path, experiment: Experiment, out: Path, wait: float, sites: Sequence[str] = ()) -> None:
    """Write the one-file app for `flwr run`: no code, only names and the experiment."""
    order = {"experiment": experiment.to_plain(), "out": str(out.absolute()), "wait": wait, "sites": sites}
    text = to_json(to_json(order))  # TOML accepts JSON's escapes
    (folder / "pyproject.toml").write_text(APP.format(order=text, **superlink.APPS), encoding="utf-8")


def _run_status(home: Path, number: str, *, query: bool) -> str:
    """Flower's status of the run, if queried; an error if the server has stopped."""
    try:
        status = run_flwr(home, "list", NAME, "--run-id", number)["runs"][0]["status"] if query else ""
    except RunError:
        if read_status(home) is not None:
            raise
        status = ""
    if read_status(home) is None:
        raise RunError(f"the server in {home} has stopped: start it again, then run this command again to continue.")
    return status


class Follower:
    """Prints what happens in a run: the lines that its server writes, and a line for each round."""

    def __init__(self, out: Path, tell: Callable[[str], None], rounds: int) -> None:
        self._out = out
        self._tell = tell
        self._lines = 0
        self._rounds = rounds
        self.ended: str | None = None
        """why the run has ended, empty if it has finished; None until then"""

    def look(self) -> str | None:
        """Print what is new; return `ended`."""
        path = progress_file(self._out)
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for text in lines[self._lines :]:
            line = json.loads(text)
            self.ended = line.get("ended", self.ended)
            if "line" in line:
                self._tell(make_printable(line["line"]))
        self._lines = len(lines)
        if (self._out / "manifest.json").exists():
            rows = Run(self._out).rounds
            for row in rows[self._rounds :]:
                self._tell(_describe_round(row))
            self._rounds = len(rows)
        return self.ended


def _describe_round(row: Round) -> str:
    clients = len(row.get("clients", ()))
    failed = sum(map(len, row.get("failed", {}).values()))
    traffic = f"{row['bytes_up'] / 1000:,.1f} KB up, {row['bytes_down'] / 1000:,.1f} KB down"
    return f"round {row['round']}: {clients - failed} of {clients} clients, {row['seconds']['round']:.1f} s, {traffic}"


def progress_file(out: Path) -> Path:
    """The file in which the run's process writes a `line` for its followers and, at the end, why it has `ended`."""
    return out.with_name(f".{out.name}.progress")


@dataclass(frozen=True)
class SiteSeen:
    name: str
    here: bool
    since: str | None
    """when it connected or left; None if it has never connected"""

    @property
    def line(self) -> str:
        if self.since is None:
            return f"  {self.name}  has never connected"
        return f"  {self.name}  {'connected' if self.here else 'not connected'} since {format_time(self.since)}"


@dataclass(frozen=True)
class ServerStatus:
    address: str | None = None
    """None if the server does not run"""
    since: str | None = None
    sites: tuple[SiteSeen, ...] = ()
    run: str | None = None
    """folder of the latest run"""
    round: int = 0
    rounds: int = 0
    ended: str | None = None
    sent: int = 0
    """bytes that this run has sent to sites"""
    received: int = 0
    privacy: str = ""
    """what the run guarantees once it has ended"""

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> Iterator[str]:
        yield f"running at {self.address} since {format_time(self.since or '')}" if self.address else "not running"
        yield from (site.line for site in self.sites)
        if self.run is None:
            yield "no run yet"
            return
        yield f"{self.run}: round {self.round} of {self.rounds}, {self.ended}"
        yield f"  {self.sent / 1e6:,.2f} MB sent to sites, {self.received / 1e6:,.2f} MB received"
        if self.privacy:
            yield f"  the whole run has {self.privacy}; for what is left, run headwise site status at a site"


def server_status(home: Path) -> ServerStatus:
    values: dict[str, Any] = {}
    if (running := read_status(home)) is not None:
        values = {"address": running.get("address"), "since": running.get("since")}
        values["sites"] = tuple(_sites_seen(home, values["since"] or ""))
    out = Path(read_json(home / LATEST)["out"]) if (home / LATEST).exists() else None
    if out is not None and (out / "manifest.json").exists():
        run = Run(out)
        values |= {
            "run": str(out),
            "round": max((row["round"] for row in run.rounds), default=0),
            "rounds": run.manifest["experiment"]["rounds"],
            "ended": run.ended,
            "sent": sum(row["bytes_down"] for row in run.sites),
            "received": sum(row["bytes_up"] for row in run.sites),
            "privacy": run.privacy,
        }
    return ServerStatus(**values)


def _sites_seen(home: Path, start: str) -> Iterator[SiteSeen]:
    """No site is connected for longer than the server runs, but Flower reports that for sites that came back."""
    names = _site_names(home)
    for node in run_flwr(home, "supernode", "list", NAME)["nodes"]:
        here = node["status"] == "online"
        since = node["online-at"] if here else node["offline-at"]
        name = names.get(node["node-id"], f"node {node['node-id']}")
        known = None if since == "N/A" else since.replace(" ", "T").replace("Z", "+00:00")
        yield SiteSeen(name, here, max(known, start) if known and here else known)
