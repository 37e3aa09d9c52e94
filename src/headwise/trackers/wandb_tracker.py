"""Weights & Biases: offline in the run's folder unless WANDB_MODE is set; ``wandb sync`` uploads it later."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import wandb

from ..engine.events import Event, RoundEnded, RunEnded, RunStarted, StartMeasured
from ..runs.manifest import read_manifest
from . import flatten_row


class WandbTracker:
    """One run of the project ``headwise``, or of WANDB_PROJECT."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._run: Any = None

    def __call__(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._run = wandb.init(
                    project=os.environ.get("WANDB_PROJECT", "headwise"),
                    name=self.folder.name,
                    dir=str(self.folder),
                    config=read_manifest(self.folder)["experiment"],
                    mode="offline" if "WANDB_MODE" not in os.environ else None,
                    settings=wandb.Settings(console="off", silent=True),
                )
            case RoundEnded(row) | StartMeasured(row):
                self._run.log(flatten_row(row), step=row["round"])
            case RunEnded(reason):
                self._run.summary["ended"] = reason
                self._run.finish(exit_code=0)
            case _:
                pass
