"""Experiment trackers: observers of the driver, each behind an optional extra."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .disk.files import read_json, write_json
from .disk.jsontext import leaves
from .engine.events import Event, Observer, RoundEnded, RunEnded, RunStarted, StartMeasured
from .errors import ConfigError, RunError, nearest
from .log.schema import ENDS
from .runs.files import check, judge_of
from .runs.manifest import read_manifest

MLFLOW_PARAMETERS = 100
"""that MLflow accepts per request"""


def make_trackers(names: Iterable[str], folder: Path) -> list[Observer]:
    """The named trackers for a run in this folder; they write nothing before the run starts."""
    observers: list[Observer] = []
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(f"track is {name!r}: {nearest(name, TRACKERS)}")
        try:
            observers.append(TRACKERS[name](folder))
        except ImportError as error:
            remedy = f"pip install 'headwise[{name}]'"
            raise ConfigError(f"track is {name!r}, which needs a package that is not installed: {remedy}.") from error
    return observers


def flatten_row(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a round's line by name: ``pre/accuracy``, ``bytes_up``, ``seconds/train``."""
    named = ((name, value) for name, value in leaves(row, between="/") if name.rpartition("/")[2] != "round")
    return {name: float(value) for name, value in named if isinstance(value, (int, float))}


class TensorBoard:
    """Writes to ``tensorboard/`` in the run's folder: ``tensorboard --logdir runs`` shows all tracked runs."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._open = SummaryWriter
        self._folder = folder / "tensorboard"
        self._writer = None

    def __call__(self, event: Event) -> None:
        """Rounds that are run again replace the earlier ones."""
        match event:
            case RunStarted(start=start):
                self._writer = self._open(str(self._folder), purge_step=start + 1 if start else None)
            case RoundEnded(row) | StartMeasured(row) if self._writer:
                for name, value in flatten_row(row).items():
                    self._writer.add_scalar(name, value, row["round"])
                self._writer.flush()
            case RunEnded() if self._writer:
                self._writer.close()
            case _:
                pass


class MLflow:
    """One MLflow run per run folder, at MLFLOW_TRACKING_URI or MLflow's default location.

    mlflow.json stores its id, so that a resumed run continues it.
    """

    def __init__(self, folder: Path) -> None:
        import mlflow

        self._mlflow: Any = mlflow
        self._client: Any = mlflow.MlflowClient()
        self._folder = folder
        self._id = ""

    def __call__(self, event: Event) -> None:
        """Each round is stored in the run's folder first, so nothing is lost if MLflow fails."""
        try:
            self._follow(event)
        except self._mlflow.exceptions.MlflowException as error:
            words = " ".join(str(error).split())[:300]
            raise RunError(
                f"{self._folder} can't be tracked by mlflow: {words}; resume continues without it."
            ) from error

    def _follow(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._id = self._find_run()
            case RoundEnded(row) | StartMeasured(row):
                now = int(time.time() * 1000)
                metric = self._mlflow.entities.Metric
                metrics = [metric(name, value, now, row["round"]) for name, value in flatten_row(row).items()]
                self._client.log_batch(self._id, metrics=metrics)
            case RunEnded(reason):
                self._client.set_tag(self._id, "ended", reason)
                self._client.set_terminated(self._id, "FINISHED" if ENDS[reason] else "KILLED")
            case _:
                pass

    def _find_run(self) -> str:
        """The id of the run that was begun for this folder, or of a new one."""
        path = self._folder / "mlflow.json"
        if path.exists():
            content = read_json(path)
            check(content, judge_of({"run_id": str}), path)
            return content["run_id"]
        known = self._client.get_experiment_by_name("headwise")
        experiment = known.experiment_id if known else self._client.create_experiment("headwise")
        made = self._client.create_run(experiment, run_name=self._folder.name).info.run_id
        settings = leaves(read_manifest(self._folder)["experiment"])
        params = [self._mlflow.entities.Param(k, str(v)[:500]) for k, v in settings]
        for i in range(0, len(params), MLFLOW_PARAMETERS):
            self._client.log_batch(made, params=params[i : i + MLFLOW_PARAMETERS])
        write_json(path, {"run_id": made})
        return made


class Wandb:
    """One run of the project ``headwise``, or of WANDB_PROJECT.

    It is offline in the run's folder unless WANDB_MODE is set; ``wandb sync`` uploads it later.
    """

    def __init__(self, folder: Path) -> None:
        import wandb

        self._wandb: Any = wandb
        self._folder = folder
        self._run: Any = None

    def __call__(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._run = self._wandb.init(
                    project=os.environ.get("WANDB_PROJECT", "headwise"),
                    name=self._folder.name,
                    dir=str(self._folder),
                    config=read_manifest(self._folder)["experiment"],
                    mode="offline" if "WANDB_MODE" not in os.environ else None,
                    settings=self._wandb.Settings(console="off", silent=True),
                )
            case RoundEnded(row) | StartMeasured(row):
                self._run.log(flatten_row(row), step=row["round"])
            case RunEnded(reason):
                self._run.summary["ended"] = reason
                self._run.finish(exit_code=0)
            case _:
                pass


TRACKERS = {"mlflow": MLflow, "tensorboard": TensorBoard, "wandb": Wandb}
