"""Models out of runs: ready to use here, or as folders that load elsewhere; what they predict, and how good they are.

Loading and predicting need numpy, `data` and `disk`; only what makes a model imports torch and `app`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import runs

if TYPE_CHECKING:
    from ..runs.query import Run
    from .run_models import Models


def _open_models(run: Run) -> Models:
    from .run_models import Models

    return Models(run)


def _continue_run(run: Run, *how: Any) -> Run:
    from ..app.fit import continue_run

    return continue_run(run, *how)


runs.open_models = _open_models
runs.continue_run = _continue_run
