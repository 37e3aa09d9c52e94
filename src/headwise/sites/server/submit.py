"""Submit a run to a SuperLink on this machine, which has the run's folder, and follow it."""

from __future__ import annotations

import itertools
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ...disk.files import write_json
from ...disk.jsontext import to_json
from ...errors import RunError
from ...log.schema import Round
from ...runs.query import Run
from ...settings.experiment import Experiment
from ..transport.envelope import printable
from ..transport.family import running
from ..transport.processes import APPS, NAME, flwr_json
from .registry import check_running, registered

PAUSE, SELDOM = 0.5, 40
"""seconds between polls of the run's folder; polls per query to Flower, which starts a process"""
LATEST = "latest.json"
"""file of the server: the run that was submitted last"""

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


def write_app(folder: Path, experiment: Experiment, out: Path, wait: float, sites: Sequence[str] = ()) -> None:
    """Write the one-file app for `flwr run`: no code, only names and the experiment."""
    order = {"experiment": experiment.plain(), "out": str(out.absolute()), "wait": wait, "sites": sites}
    text = to_json(to_json(order))  # TOML accepts JSON's escapes
    (folder / "pyproject.toml").write_text(APP.format(order=text, **APPS), encoding="utf-8")


def submit(home: Path, experiment: Experiment, out: Path, wait: float, tell: Callable[[str], None]) -> Run:
    """Start or resume the run and wait until it ends; `home` is the server's folder."""
    check_running(home)
    for path in (end_file(out), said_file(out)):
        path.unlink(missing_ok=True)
    write_json(home / LATEST, {"out": str(out)})
    before = len(Run(out).rounds) if (out / "manifest.json").exists() else 0
    with tempfile.TemporaryDirectory() as folder:
        write_app(Path(folder), experiment, out, wait, sorted(registered(home).values()))
        number = str(flwr_json(home, "run", folder, NAME)["run-id"])
    tell("the run is submitted; its server starts")
    follower = Follower(out, tell, before)
    for k in itertools.count(1):
        time.sleep(PAUSE)
        follower.look()
        if end_file(out).exists():
            break
        status = _status(home, number, ask=k % SELDOM == 0)
        if status.startswith("finished") and not end_file(out).exists():
            raise RunError(f"the run is {status}: run flwr log {number} {NAME} --show to see why.")
    follower.look()
    said_file(out).unlink(missing_ok=True)
    if why := end_file(out).read_text(encoding="utf-8"):
        raise RunError(printable(why))
    return Run(out)


def _status(home: Path, number: str, *, ask: bool) -> str:
    """Flower's status of the run, if asked for; an error if the server has stopped."""
    try:
        status = flwr_json(home, "list", NAME, "--run-id", number)["runs"][0]["status"] if ask else ""
    except RunError:
        if running(home) is not None:
            raise
        status = ""
    if running(home) is None:
        raise RunError(f"the server in {home} has stopped: start it again, and run this command again to go on.")
    return status


class Follower:
    """Tells what happens in a run, line by line: what its server says, and each round."""

    def __init__(self, out: Path, tell: Callable[[str], None], rounds: int) -> None:
        self._out, self._tell = out, tell
        self._said, self._rounds = 0, rounds

    def look(self) -> None:
        if said_file(self._out).exists():
            lines = said_file(self._out).read_text(encoding="utf-8").splitlines()
            for line in lines[self._said :]:
                self._tell(printable(json.loads(line)["said"]))
            self._said = len(lines)
        if (self._out / "manifest.json").exists():
            rows = Run(self._out).rounds
            for row in rows[self._rounds :]:
                self._tell(_line(row))
            self._rounds = len(rows)


def _line(row: Round) -> str:
    asked, failed = len(row.get("clients", ())), sum(map(len, row.get("failed", {}).values()))
    sent = f"{row['bytes_up'] / 1000:,.1f} KB up, {row['bytes_down'] / 1000:,.1f} KB down"
    return f"round {row['round']}: {asked - failed} of {asked} clients, {row['seconds']['round']:.1f} s, {sent}"


def end_file(out: Path) -> Path:
    """Where the server process leaves its final error, or nothing: its output goes to Flower's log."""
    return out.with_name(f".{out.name}.ended")


def said_file(out: Path) -> Path:
    """What the server process says to whoever follows the run."""
    return out.with_name(f".{out.name}.said")
