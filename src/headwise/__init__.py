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
    from .app.choose import choose
    from .app.compare import compare
    from .app.fit import fit
    from .app.launch import resume, run
    from .app.tune import tune
    from .errors import HeadwiseError
    from .exports.estimators import PersonalizedClassifier, PersonalizedRegressor
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
    "PersonalizedClassifier",
    "PersonalizedRegressor",
    "Run",
    "TrainedModel",
    "choose",
    "compare",
    "fit",
    "load_model",
    "resume",
    "run",
    "split",
    "tune",
]

_HOMES = {
    "Experiment": "settings.experiment",
    "HeadwiseError": "errors",
    "Models": "exports.run_models",
    "PersonalizedClassifier": "exports.estimators",
    "PersonalizedRegressor": "exports.estimators",
    "Run": "runs.query",
    "TrainedModel": "exports.model",
    "choose": "app.choose",
    "compare": "app.compare",
    "fit": "app.fit",
    "load_model": "exports.loading",
    "resume": "app.launch",
    "run": "app.launch",
    "split": "models.split",
    "tune": "app.tune",
}
"""the module of each public name"""


def __dir__() -> list[str]:
    return [*__all__]


if not TYPE_CHECKING:  # or a type checker would take any name for a public one

    def __getattr__(name: str) -> Any:
        """Import public names on first use, so that the command line starts without torch."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
