"""MLflow: logs to MLFLOW_TRACKING_URI, or to MLflow's default location if it is not set."""

from __future__ import annotations

import time
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from ..disk.files import read_json, write_json
from ..disk.jsontext import leaves
from ..engine.events import Event, RoundEnded, RunEnded, RunStarted, StartMeasured
from ..errors import RunError
from ..log.schema import ENDS
from ..runs.files import check, judge_of
from ..runs.manifest import read_manifest
from . import flatten_row

EXPERIMENT = "headwise"
MANY = 100
"""parameters that MLflow accepts per request"""


class MLflowTracker:
    """One MLflow run per run folder; mlflow.json stores its id, so that a resumed run continues it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._client = MlflowClient()
        self._id = ""

    def __call__(self, event: Event) -> None:
        """Each round is stored in the run's folder first, so nothing is lost if MLflow fails."""
        try:
            self._follow(event)
        except MlflowException as error:
            words = " ".join(str(error).split())[:300]
            raise RunError(
                f"{self.folder} can't be tracked by mlflow: {words}; resume continues without it."
            ) from error

    def _follow(self, event: Event) -> None:
        match event:
            case RunStarted():
                path = self.folder / "mlflow.json"
                self._id = _read_id(path) if path.exists() else self._create()
            case RoundEnded(row) | StartMeasured(row):
                now = int(time.time() * 1000)
                metrics = [Metric(name, value, now, row["round"]) for name, value in flatten_row(row).items()]
                self._client.log_batch(self._id, metrics=metrics)
            case RunEnded(reason):
                self._client.set_tag(self._id, "ended", reason)
                done = ENDS[reason]
                self._client.set_terminated(self._id, "FINISHED" if done else "KILLED")
            case _:
                pass

    def _create(self) -> str:
        existing = self._client.get_experiment_by_name(EXPERIMENT)
        experiment = existing.experiment_id if existing else self._client.create_experiment(EXPERIMENT)
        made = self._client.create_run(experiment, run_name=self.folder.name).info.run_id
        known = [Param(k, str(v)[:500]) for k, v in leaves(read_manifest(self.folder)["experiment"])]
        for i in range(0, len(known), MANY):
            self._client.log_batch(made, params=known[i : i + MANY])
        write_json(self.folder / "mlflow.json", {"run_id": made})
        return made


def _read_id(path: Path) -> str:
    content = read_json(path)
    check(content, judge_of({"run_id": str}), path)
    return content["run_id"]
