"""Runs that are killed and resumed, and whether they come to the same as undisturbed ones."""

from __future__ import annotations

import multiprocessing
import signal
import time
from contextlib import closing
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, NamedTuple

from ..config import Experiment, find_class
from ..launch import run_or_resume
from ..method import record_types
from ..records import encode
from ..runs.checkpoint import Checkpoint, Checkpoints
from ..runs.query import Run


class Kill(NamedTuple):
    """What became of a run that was killed."""

    rounds: int
    """that were done when it was killed; -1: it had no manifest yet"""
    same: bool
    """whether it ended with the bits of the undisturbed run"""


def forks() -> ForkServerContext:
    """Processes that start at once, because torch is imported already where they come from."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["headwise.launch", "torch._dynamo", "sklearn.datasets"])
    return context


def seconds_of(experiment: Experiment, folder: Path, context: ForkServerContext) -> float:
    """What a whole run takes in a process of its own."""
    begun = 0.0
    for name in ("first", "second"):  # the first one also waits for the fork server to import torch
        process = context.Process(target=run_or_resume, args=(experiment, folder / name))
        begun = time.monotonic()
        process.start()
        process.join()
    return time.monotonic() - begun


def killed_and_resumed(
    experiment: Experiment, folder: Path, wanted: dict[str, Any], delay: float, context: ForkServerContext
) -> Kill | None:
    """Begin a run, kill its process after so many seconds, go on with it; None if it was quicker than that."""
    process = context.Process(target=run_or_resume, args=(experiment, folder))
    process.start()
    time.sleep(delay)
    process.kill()
    process.join()
    if process.exitcode != -signal.SIGKILL:
        return None
    rounds = len(Run(folder).rounds) if (folder / "manifest.json").exists() else -1
    run_or_resume(experiment, folder)
    return Kill(rounds, bits(folder) == wanted)


def bits(folder: Path) -> dict[str, Any]:
    """Everything of a run that must be the same, however often it was interrupted."""
    lines = (folder / "clients.jsonl").read_bytes()
    return {"rows": rows(folder), "clients": lines, "kept": _kept(folder), "ended": Run(folder).ended}


def rows(folder: Path) -> list[dict[str, Any]]:
    """rounds.jsonl but for the time and memory that it took."""
    return [{k: v for k, v in row.items() if k not in ("seconds", "memory")} for row in Run(folder).rounds]


def checkpoint(folder: Path) -> tuple[Checkpoint, Checkpoints]:
    """The newest checkpoint of a run, and the folder that it is in, to be closed."""
    checkpoints = Checkpoints(folder / "checkpoint", record_types(find_class("method", Run(folder).method)))
    found = checkpoints.load()
    assert found is not None
    return found, checkpoints


def _kept(folder: Path) -> dict[str, Any]:
    """What the newest checkpoint holds; where it lies on the disk does not matter."""
    found, checkpoints = checkpoint(folder)
    with closing(checkpoints):
        states = {c: found.states.encoded(c) for c in found.states}
    progress = found.progress
    return {"t": progress.t, "server": encode(progress.server), "best": progress.best, "states": states}
