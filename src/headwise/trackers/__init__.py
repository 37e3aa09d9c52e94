"""Experiment trackers: observers of the driver, each behind an optional extra."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..disk.jsontext import leaves
from ..engine.events import Observer
from ..errors import ConfigError, nearest

TRACKERS = ("mlflow", "tensorboard", "wandb")


def make_trackers(names: Iterable[str], folder: Path) -> list[Observer]:
    """The named trackers for a run in this folder; they write nothing before the run starts."""
    observers: list[Observer] = []
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(f"track is {name!r}: {nearest(name, TRACKERS)}")
        try:
            observers.append(_make(name, folder))
        except ImportError as error:
            remedy = f"pip install 'headwise[{name}]'"
            raise ConfigError(f"track is {name!r}, which needs a package that is not installed: {remedy}.") from error
    return observers


def _make(name: str, folder: Path) -> Observer:
    if name == "mlflow":
        from .mlflow_tracker import MLflowTracker as Tracker
    elif name == "wandb":
        from .wandb_tracker import WandbTracker as Tracker
    else:
        from .tensorboard_tracker import TensorBoardTracker as Tracker
    return Tracker(folder)


def flatten_row(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a round's line by name: ``pre/accuracy``, ``bytes_up``, ``seconds/train``."""
    named = ((name, value) for name, value in leaves(row, between="/") if name.rpartition("/")[2] != "round")
    return {name: float(value) for name, value in named if isinstance(value, (int, float))}
