"""Hand a run to a SuperLink, and follow it. Run it on the SuperLink's machine: the run's folder is there."""

from __future__ import annotations

import itertools
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...disk.jsontext import to_json
from ...errors import RunError
from ...runs.query import Run
from ...settings.experiment import Experiment
from ..transport.processes import APPS, NAME, flwr

PAUSE, SELDOM = 0.5, 40
"""seconds between two looks at the run's folder, and after how many of them Flower is asked: that starts a process"""

APP = """[project]
name = "headwise-run"
version = "1.0.0"
description = "One run of Headwise: everything that it does is in the installed library."
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


def write_app(folder: Path, experiment: Experiment, out: Path, wait: float) -> None:
    """A Flower app of one file, as `flwr run` takes it; it holds no code, only names and the experiment."""
    order = {"experiment": experiment.plain(), "out": str(out.absolute()), "wait": wait}
    text = to_json(to_json(order))  # JSON's escapes are TOML's, too
    (folder / "pyproject.toml").write_text(APP.format(order=text, **APPS), encoding="utf-8")


def submit(home: Path, experiment: Experiment, out: Path, wait: float, tell: Callable[[str], None]) -> Run:
    """Start the run, or go on with it, and wait until it has ended; `home` is the server's folder."""
    end_file(out).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        write_app(Path(folder), experiment, out, wait)
        number = str(_json(home, "run", folder, NAME)["run-id"])
    shown = 0
    for k in itertools.count(1):
        time.sleep(PAUSE)
        if (out / "manifest.json").exists():
            shown = _show(Run(out), shown, tell)
        if end_file(out).exists():
            break
        status = _json(home, "list", NAME, "--run-id", number)["runs"][0]["status"] if k % SELDOM == 0 else ""
        if status.startswith("finished") and not end_file(out).exists():
            raise RunError(f"the run is {status}: flwr log {number} {NAME} --show says why.")
    if why := end_file(out).read_text(encoding="utf-8"):
        raise RunError(why)
    return Run(out)


def _show(run: Run, shown: int, tell: Callable[[str], None]) -> int:
    """Say what is new, round by round."""
    rows = run.rounds
    for row in rows[shown:]:
        asked, failed = len(row.get("clients", ())), sum(map(len, row.get("failed", {}).values()))
        tell(f"round {row['round']}: {asked - failed} of {asked} clients")
    return len(rows)


def end_file(out: Path) -> Path:
    """Where the server's process says that it has ended, and what went wrong: what it prints goes to Flower's log."""
    return out.with_name(f".{out.name}.ended")


def _json(home: Path, *arguments: str) -> dict[str, Any]:
    """Flower's own command, asked for JSON."""
    said = flwr(home, *arguments, "--format", "json")
    try:
        found = json.loads(said)
    except ValueError:
        found = {"error-message": said.strip().splitlines()[-1:]}
    if not found.get("success"):
        raise RunError(f"flwr {arguments[0]} failed: {found.get('error-message')}.")
    return found
