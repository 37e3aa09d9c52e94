"""Hand a run to a SuperLink, and follow it. Run it on the SuperLink's machine: the run's folder is there."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..config import Experiment
from ..errors import RunError
from ..runs.query import Run
from .processes import APPS, NAME, flwr

PAUSE = 2.0
"""seconds between two looks at the run"""

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
    text = json.dumps(json.dumps(order))  # JSON's escapes are TOML's, too
    (folder / "pyproject.toml").write_text(APP.format(order=text, **APPS), encoding="utf-8")


def submit(home: Path, experiment: Experiment, out: Path, wait: float, tell: Callable[[str], None]) -> Run:
    """Start the run, or go on with it, and wait until it has ended; `home` is the server's folder."""
    begun = time.time()
    with tempfile.TemporaryDirectory() as folder:
        write_app(Path(folder), experiment, out, wait)
        number = str(_json(home, "run", folder, NAME)["run-id"])
    shown = 0
    while True:
        status = str(_json(home, "list", NAME, "--run-id", number)["runs"][0]["status"])
        if (out / "manifest.json").exists():
            shown = _show(Run(out), shown, tell)
        if status.startswith("finished"):
            break
        time.sleep(PAUSE)
    if status != "finished:completed":
        raise RunError(f"the run is {status}: {_why(out, begun) or f'flwr log {number} {NAME} --show says why.'}")
    return Run(out)


def _show(run: Run, shown: int, tell: Callable[[str], None]) -> int:
    """Say what is new, round by round."""
    rows = run.rounds
    for row in rows[shown:]:
        failed = sum(map(len, row.get("failed", {}).values()))
        tell(f"round {row['round']}: {len(row['clients']) - failed} of {len(row['clients'])} clients")
    return len(rows)


def _why(out: Path, begun: float) -> str:
    """What the server's process left beside the run's folder before it ended."""
    path = failure_file(out)
    return path.read_text(encoding="utf-8") if path.exists() and path.stat().st_mtime >= begun else ""


def failure_file(out: Path) -> Path:
    """Where the server's process says why a run ended early: its own output goes to Flower's log."""
    return out.with_name(f".{out.name}.failure")


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
