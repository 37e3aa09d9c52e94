"""Trackers, with the real programs: what they store matches the run's own rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwise as hw
from headwise.errors import ConfigError, RunError
from headwise.trackers import TRACKERS, flatten_row, make_trackers
from waiting import PATIENCE, until

EXPERIMENT = hw.Experiment(
    method="fedper", data="synthetic:80:2:3:sites=2", partition="iid", model="mlp:4", clients=2, rounds=3
)


of_mlflow = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # it uses its own dependencies in a deprecated way


def run_tracked(name: str, folder: Path) -> hw.Run:
    return hw.run(EXPERIMENT, folder, observers=make_trackers([name], folder))


def rows_by_round(run: hw.Run) -> dict[int, dict[str, float]]:
    return {row["round"]: flatten_row(row) for row in (run.start, *run.rounds) if row}


def test_numbers_are_the_figures_of_a_row() -> None:
    row = {
        "round": 3,
        "clients": [0, 1],
        "bytes_up": 8,
        "pre": {"accuracy": 0.5, "loss": None},
        "seconds": {"train": 1},
    }
    assert flatten_row(row) == {"bytes_up": 8.0, "pre/accuracy": 0.5, "seconds/train": 1.0}


def test_unknown_trackers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="track is 'tensorbord': did you mean 'tensorboard'"):
        make_trackers(["tensorbord"], tmp_path)


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_package_is_said_before_anything_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer" if name == "tensorboard" else name, None)
    with pytest.raises(ConfigError, match=rf"pip install 'headwise\[{name}\]'"):
        make_trackers([name], tmp_path)


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install 'headwise[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = run_tracked("tensorboard", tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    by_round = rows_by_round(run)
    assert set(events.Tags()["scalars"]) == set(by_round[3])
    for name in by_round[3]:
        values = {e.step: e.value for e in events.Scalars(name)}
        assert values == pytest.approx({t: row[name] for t, row in by_round.items() if name in row})


@of_mlflow
def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed: pip install 'headwise[mlflow]'")
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/store.db")
    run = run_tracked("mlflow", tmp_path / "run")
    client: Any = MlflowClient()
    [stored] = client.search_runs([client.get_experiment_by_name("headwise").experiment_id])
    assert (stored.info.run_name, stored.info.status) == ("run", "FINISHED")
    assert stored.data.tags["ended"] == "finished"
    assert stored.data.params["method.name"] == "fedper"
    assert stored.data.params["train.lr"] == str(run.manifest["experiment"]["train"]["lr"])
    by_round = rows_by_round(run)
    for name in by_round[3]:
        history = {m.step: m.value for m in client.get_metric_history(stored.info.run_id, name)}
        assert history == pytest.approx({t: row[name] for t, row in by_round.items() if name in row})


def test_a_lost_mlflow_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed: pip install 'headwise[mlflow]'")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(RunError, match=r"run can't be tracked by mlflow: .*; resume continues without it"):
        run_tracked("mlflow", tmp_path / "run")
    assert hw.resume(tmp_path / "run").complete


@of_mlflow
def test_mlflow_goes_on_with_a_resumed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed: pip install 'headwise[mlflow]'")
    from mlflow import MlflowClient

    from headwise.engine.events import RunEnded, RunStarted

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/store.db")
    run = run_tracked("mlflow", tmp_path / "run")
    [again] = make_trackers(["mlflow"], run.path)
    stored = (run.path / "mlflow.json").read_text()
    (run.path / "mlflow.json").write_text("{}")
    with pytest.raises(RunError, match=r"mlflow\.json is damaged: its run_id is missing"):
        again(RunStarted(3, 3, 2))
    (run.path / "mlflow.json").write_text(stored)
    again(RunStarted(3, 2, 3))
    again(RunEnded("finished"))
    client: Any = MlflowClient()
    assert len(client.search_runs([client.get_experiment_by_name("headwise").experiment_id])) == 1


def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed: pip install 'headwise[wandb]'")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.delenv("WANDB_MODE", raising=False)
    for wait in ("WANDB_INIT_TIMEOUT", "WANDB_X_SERVICE_WAIT"):  # its default timeouts are for an idle machine
        monkeypatch.setenv(wait, str(PATIENCE))
    run = run_tracked("wandb", tmp_path / "run")
    [path] = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    stored: list[Any] = []

    def read_records() -> bool:
        """A separate process writes the file and may be late."""
        stored[:] = [wandb_internal_pb2.Record.FromString(data) for data in records(path.read_bytes())]
        return any(r.WhichOneof("record_type") == "exit" for r in stored)

    until(read_records, "the file is whole")
    steps: dict[int, dict[str, float]] = {}
    for history in (r.history for r in stored if r.WhichOneof("record_type") == "history"):
        items = {i.nested_key[0] if i.nested_key else i.key: i.value_json for i in history.item}
        steps[history.step.num] = {k: float(v) for k, v in items.items() if not k.startswith("_")}
    assert steps.keys() == {0, 1, 2, 3}, [r.WhichOneof("record_type") for r in stored]
    for t, row in rows_by_round(run).items():
        assert steps[t] == pytest.approx(row)


def records(data: bytes) -> Iterator[bytes]:
    """The complete records of a .wandb file: a seven-byte header, then a log in LevelDB's format."""
    at = 7
    whole = b""
    while at + 7 <= len(data):
        if 0 < (left := -at % 32768) < 7:  # the end of a block may be too short for a header
            at += left
            continue
        size = int.from_bytes(data[at + 4 : at + 6], "little")
        kind = data[at + 6]
        if at + 7 + size > len(data):  # the rest is not written yet
            return
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole record, or its last piece
            yield whole
            whole = b""
