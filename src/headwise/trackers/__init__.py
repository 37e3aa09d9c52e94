"""Other programs that keep experiments: each an observer of the driver, behind an optional extra."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..engine.events import Observer
from ..errors import ConfigError, nearest

TRACKERS = {"mlflow": "MLflowTracker", "tensorboard": "TensorBoardTracker", "wandb": "WandbTracker"}


def trackers(names: Iterable[str], folder: Path) -> list[Observer]:
    """The trackers of a run that is, or will be, in this folder; nothing is written before the run starts."""
    found: list[Observer] = []
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(f"track is {name!r}: {nearest(name, TRACKERS)}")
        try:
            module = importlib.import_module(f"headwise.trackers.{name}_tracker")
            found.append(getattr(module, TRACKERS[name])(folder))
        except ImportError as error:
            remedy = f"pip install 'headwise[{name}]'"
            raise ConfigError(f"track is {name!r}, which needs a package that is not installed: {remedy}.") from error
    return found


def numbers(row: Mapping[str, Any], at: str = "") -> dict[str, float]:
    """The figures of a round by name: ``pre/accuracy``, ``bytes_up``, ``seconds/train``."""
    found: dict[str, float] = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            found |= numbers(value, f"{at}{key}/")
        elif isinstance(value, (int, float)) and key != "round":
            found[f"{at}{key}"] = float(value)
    return found


def settings(tree: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, str]]:
    """An experiment's settings by name, as texts: ``train.lr``."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from settings(value, f"{at}{key}.")
        else:
            yield f"{at}{key}", str(value)
