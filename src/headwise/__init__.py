"""Headwise: personalized federated learning, one good model per client.

import headwise as hw

run = hw.run(hw.Experiment(method="fedrep", data="digits", partition="dirichlet:0.1", rounds=20))
print(run.accuracy())
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":  # files are locked, flushed and shared as POSIX does it
    raise ImportError("headwise runs on Linux and macOS; on Windows, install it in WSL.")

from . import exports as exports  # registers what gives a run its models

if TYPE_CHECKING:
    from .app.compare import compare
    from .app.fit import fit
    from .app.launch import resume, run
    from .app.tune import tune
    from .errors import HeadwiseError
    from .exports.loading import load_model
    from .exports.model import TrainedModel
    from .exports.run_models import Models
    from .models.split import split
    from .runs.query import Run
    from .settings.experiment import Experiment

__version__ = "0.1.0"

__all__ = [
    "Experiment",
    "HeadwiseError",
    "Models",
    "Run",
    "TrainedModel",
    "compare",
    "fit",
    "load_model",
    "resume",
    "run",
    "split",
    "tune",
]

_HOMES = {
    "app.compare": ("compare",),
    "settings.experiment": ("Experiment",),
    "errors": ("HeadwiseError",),
    "exports.loading": ("load_model",),
    "exports.model": ("TrainedModel",),
    "exports.run_models": ("Models",),
    "app.fit": ("fit",),
    "app.launch": ("resume", "run"),
    "app.tune": ("tune",),
    "models.split": ("split",),
    "runs.query": ("Run",),
}


def __dir__() -> list[str]:
    return [*__all__]


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that the command line starts without torch."""
    for room, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{room}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
