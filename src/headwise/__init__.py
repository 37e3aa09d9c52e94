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

if TYPE_CHECKING:
    from .app.compare import compare
    from .app.fit import fit
    from .app.launch import resume, run
    from .contract.averaging import Averaging, Shared
    from .contract.method import Central, ClassMeans, Local, Method, Predictor, Reply, Update
    from .errors import HeadwiseError
    from .exports.loading import load
    from .exports.model import TrainedModel
    from .exports.personal import Models
    from .models.composing import Composed
    from .models.split import SplitModel, split
    from .params import Params, mean
    from .records import Nothing, Record
    from .runs.query import Run
    from .settings.experiment import Experiment
    from .settings.fields import Count, Natural, NonNegative, Positive, Unit
    from .testing import check_method

__version__ = "0.1.0"

__all__ = [
    "Averaging",
    "Central",
    "ClassMeans",
    "Composed",
    "Count",
    "Experiment",
    "HeadwiseError",
    "Local",
    "Method",
    "Models",
    "Natural",
    "NonNegative",
    "Nothing",
    "Params",
    "Positive",
    "Predictor",
    "Record",
    "Reply",
    "Run",
    "Shared",
    "SplitModel",
    "TrainedModel",
    "Unit",
    "Update",
    "check_method",
    "compare",
    "fit",
    "load",
    "mean",
    "resume",
    "run",
    "split",
]

_HOMES = {
    "contract.averaging": ("Averaging", "Shared"),
    "app.compare": ("compare",),
    "settings.experiment": ("Experiment",),
    "settings.fields": ("Count", "Natural", "NonNegative", "Positive", "Unit"),
    "errors": ("HeadwiseError",),
    "exports.loading": ("load",),
    "exports.model": ("TrainedModel",),
    "exports.personal": ("Models",),
    "app.fit": ("fit",),
    "app.launch": ("resume", "run"),
    "contract.method": ("Central", "ClassMeans", "Local", "Method", "Predictor", "Reply", "Update"),
    "models.composing": ("Composed",),
    "models.split": ("SplitModel", "split"),
    "params": ("Params", "mean"),
    "records": ("Nothing", "Record"),
    "runs.query": ("Run",),
    "testing": ("check_method",),
}


def __dir__() -> list[str]:
    return [*__all__]


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that the command line starts without torch."""
    for room, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{room}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
