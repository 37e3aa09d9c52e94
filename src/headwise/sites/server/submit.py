"""Submit a run to a SuperLink on this machine, which has the run's folder, and follow it."""

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
"""seconds between polls of the run's folder; polls per query to Flower, which starts a process"""

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


def write_app(folder: Path, experiment: Experiment, out: Path, wait: float) -> None:
    """Write the one-file app for `flwr run`: no code, only names and the experiment."""
    order = {"experiment": experiment.plain(), "out": str(out.absolute()), "wait": wait}
    text = to_json(to_json(order))  # TOML accepts JSON's escapes
    (folder / "pyproject.toml").write_text(APP.format(order=text, **APPS), encoding="utf-8")


def submit(home: Path, experiment: Experiment, out: Path, wait: float, tell: Callable[[str], None]) -> Run:
    """Start or resume the run and wait until it ends; `home` is the server's folder."""
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
            raise RunError(f"the run is {status}: run flwr log {number} {NAME} --show to see why.")
    if why := end_file(out).read_text(encoding="utf-8"):
        raise RunError(why)
    return Run(out)


def _show(run: Run, shown: int, tell: Callable[[str], None]) -> int:
    rows = run.rounds
    for row in rows[shown:]:
        asked, failed = len(row.get("clients", ())), sum(map(len, row.get("failed", {}).values()))
        tell(f"round {row['round']}: {asked - failed} of {asked} clients")
    return len(rows)


def end_file(out: Path) -> Path:
    """Where the server process leaves its final error, or nothing: its output goes to Flower's log."""
    return out.with_name(f".{out.name}.ended")


def _json(home: Path, *arguments: str) -> dict[str, Any]:
    said = flwr(home, *arguments, "--format", "json")
    try:
        found = json.loads(said)
    except ValueError:
        found = {"error-message": said.strip().splitlines()[-1:]}
    if not found.get("success"):
        raise RunError(f"flwr {arguments[0]} failed: {found.get('error-message')}.")
    return found
