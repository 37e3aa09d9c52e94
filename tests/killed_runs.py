"""What must be the same of a run, however often it was killed and resumed."""

from __future__ import annotations

import multiprocessing
from contextlib import closing
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from headwise.app import registry
from headwise.contract.method import record_types
from headwise.records import encode
from headwise.runs.checkpoint import Checkpoint, Checkpoints
from headwise.runs.query import Run
from same_runs import rows


def forks() -> ForkServerContext:
    """Processes that start at once, because torch is imported already where they come from."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["headwise.app.launch", "torch._dynamo"])
    return context


def bits(folder: Path) -> dict[str, Any]:
    """Everything of a run that must be the same, however often it was interrupted."""
    lines = (folder / "clients.jsonl").read_bytes()
    return {"rows": rows(folder), "clients": lines, "kept": _kept(folder), "ended": Run(folder).ended}


def checkpoint(folder: Path) -> tuple[Checkpoint, Checkpoints]:
    """The newest checkpoint of a run, and the folder that it is in, to be closed."""
    checkpoints = Checkpoints(folder / "checkpoint", record_types(registry.find("method", Run(folder).method)))
    found = checkpoints.load()
    assert found is not None
    return found, checkpoints


def _kept(folder: Path) -> dict[str, Any]:
    """What the newest checkpoint holds; where it lies on the disk does not matter."""
    found, checkpoints = checkpoint(folder)
    with closing(checkpoints):
        states = {c: found.states.encode(c) for c in found.states}
    progress = found.progress
    return {"t": progress.t, "server": encode(progress.server), "best": progress.best, "states": states}
