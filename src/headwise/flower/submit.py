"""Hand a run to a SuperLink, and wait for its end. Run it on the SuperLink's machine: the run's folder is there."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ..config import Experiment
from ..errors import RunError
from ..runs.query import Run

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
serverapp = "headwise.flower.apps:server_app"
clientapp = "headwise.flower.apps:client_app"

[tool.flwr.app.config]
order = {order}
"""


def write_app(folder: Path, experiment: Experiment, out: Path, data_dir: Path, deadline: float) -> None:
    """A Flower app of one file, as `flwr run` takes it; it holds no code, only names and the experiment."""
    order = {"experiment": experiment.plain(), "out": str(out.absolute()), "data": str(data_dir.absolute())}
    text = json.dumps(json.dumps({**order, "deadline": deadline}))  # JSON's escapes are TOML's, too
    (folder / "pyproject.toml").write_text(APP.format(order=text), encoding="utf-8")


def submit(experiment: Experiment, out: Path, data_dir: Path, superlink: str, deadline: float) -> Run:
    """Start the run, or go on with it, and wait until it has ended."""
    with tempfile.TemporaryDirectory() as folder:
        write_app(Path(folder), experiment, out, data_dir, deadline)
        started = _flwr("run", folder, superlink)
    number = str(started["run-id"])
    while True:
        status = str(_flwr("list", superlink, "--run-id", number)["runs"][0]["status"])
        if status.startswith("finished"):
            break
        time.sleep(PAUSE)
    if status != "finished:completed":
        raise RunError(f"the run {number} is {status} at {superlink}: flwr log {number} {superlink} --show says why.")
    return Run(out)


def _flwr(*arguments: str) -> dict[str, Any]:
    """Flower's own command, asked for JSON."""
    command = [str(Path(sys.executable).with_name("flwr")), *arguments, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found = json.loads(done.stdout)
    except ValueError:
        found = {"error-message": (done.stderr or done.stdout).strip().splitlines()[-1:]}
    if done.returncode or not found.get("success"):
        raise RunError(f"flwr {arguments[0]} failed: {found.get('error-message')}.")
    return found
