"""Labels come back in the type that was passed in, as docs/own-data.md prints it: by type, way in and way out."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import headwise as hw
from headwise.cli import main
from waiting import PATIENCE

PAGE = Path(__file__).parents[2] / "docs" / "own-data.md"
N = 40
TWO = np.arange(N) % 2
LABELS: dict[str, Any] = {
    "int": np.where(TWO, 7, 3),
    "bool": TWO == 1,
    "float": np.where(TWO, 7.0, 3.0),
    "str": np.where(TWO, "yes", "no"),
    "datetime": np.where(TWO, np.datetime64("2020-01-02"), np.datetime64("2021-03-04")).astype("datetime64[ns]"),
    "Int64 of pandas": pd.array(np.where(TWO, 7, 3), dtype="Int64"),
    "category of int": pd.Categorical(np.where(TWO, 7, 3)),
    "category of str": pd.Categorical(np.where(TWO, "yes", "no")),
}
TYPES = {"int": "i", "bool": "b", "float": "f", "str": "UO", "datetime": "M"}
"""numpy's kinds of each type that comes back; pandas has texts as objects"""
TABLES = ("a DataFrame", "DataFrames", "CSV")
ONE_TABLE = ("a DataFrame", "CSV")
"""with a column for the client"""


class Samples(torch.utils.data.Dataset[Any]):
    def __init__(self, x: Any, y: Any) -> None:
        self.x = x
        self.y = y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Any:
        return self.x[i], self.y[i]


def features(y: Any) -> np.ndarray[Any, Any]:
    """Two columns that tell the classes apart."""
    rng = np.random.default_rng(0)
    return np.stack([TWO * 4.0 + rng.normal(size=N), rng.normal(size=N)], 1).astype(np.float32)


def frame_of(y: Any) -> pd.DataFrame:
    x = features(y)
    return pd.DataFrame({"site": ["a", "b"] * (N // 4) + ["b", "a"] * (N // 4), "u": x[:, 0], "v": x[:, 1], "label": y})


def from_arrays(y: Any, folder: Path) -> tuple[Any, dict[str, Any]]:
    return {"a": (features(y), np.asarray(y)), "b": (features(y), np.asarray(y))}, {}


def from_tensors(y: Any, folder: Path) -> tuple[Any, dict[str, Any]]:
    try:
        values: Any = torch.from_numpy(np.asarray(y))
    except TypeError:  # torch has no strings or dates
        values = np.asarray(y)
    return {name: (torch.from_numpy(features(y)), values) for name in ("a", "b")}, {}


def from_frame(y: Any, folder: Path) -> tuple[Any, dict[str, Any]]:
    return frame_of(y), {"client": "site", "target": "label"}


def from_frames(y: Any, folder: Path) -> tuple[Any, dict[str, Any]]:
    table = frame_of(y)
    parts = [(name, table[table["site"] == name]) for name in ("a", "b")]
    return {name: (rows[["u", "v"]], rows["label"]) for name, rows in parts}, {}


def from_datasets(y: Any, folder: Path) -> tuple[Any, dict[str, Any]]:
    return {name: Samples(torch.from_numpy(features(y)), np.asarray(y)) for name in ("a", "b")}, {}


def from_csv(y: Any, folder: Path) -> tuple[Any, dict[str, Any]]:
    frame_of(y).to_csv(folder / "table.csv", index=False)
    toml = 'format = "csv"\npath = "table.csv"\nclient = "site"\ntarget = "label"\n[features]\nnumber = ["u", "v"]\n'
    if np.asarray(y).dtype.kind == "M":
        toml = toml.replace("[features]", 'label_type = "datetime"\n[features]')
    (folder / "data.toml").write_text(toml)
    return folder / "data.toml", {}


WAYS_IN: dict[str, Callable[[Any, Path], tuple[Any, dict[str, Any]]]] = {
    "arrays": from_arrays,
    "tensors": from_tensors,
    "a DataFrame": from_frame,
    "DataFrames": from_frames,
    "torch Datasets": from_datasets,
    "CSV": from_csv,
}
WAYS_OUT = ("run.model", "run.predict", "pickled", "torch, new process", "ONNX, new process", "CSV of headwise predict")
PROGRAM = """
import pickle, sys
import headwise as hw
folder = sys.argv[1]
with open(f"{folder}/jobs", "rb") as file:
    jobs = pickle.load(file)
answers = {key: hw.load_model(path).predict(samples) for key, (path, samples) in jobs.items()}
with open(f"{folder}/answers", "wb") as file:
    pickle.dump(answers, file)
"""


def type_of(values: np.ndarray[Any, Any]) -> str:
    return next(name for name, kind in TYPES.items() if values.dtype.kind in kind)


def read_csv(path: Path, name: str) -> np.ndarray[Any, Any]:
    """The predictions of a CSV file, as pandas reads them."""
    dates = ["prediction"] if name == "datetime" else False
    return pd.read_csv(path, parse_dates=dates)["prediction"].to_numpy()


def write_samples(way: str, y: Any, path: Path) -> Path:
    """The samples as a file for `headwise predict`."""
    if way in TABLES:
        frame_of(y).drop(columns="label").to_csv(path.with_suffix(".csv"), index=False)
        return path.with_suffix(".csv")
    np.savez(path.with_suffix(".npz"), x=features(y))
    return path.with_suffix(".npz")


def predict_in_new_process(folder: Path, jobs: dict[Any, Any]) -> dict[Any, Any]:
    (folder / "jobs").write_bytes(pickle.dumps(jobs))
    subprocess.run([sys.executable, "-c", PROGRAM, str(folder)], check=True, timeout=PATIENCE)
    return pickle.loads((folder / "answers").read_bytes())


def list_rows_of_page(name: str) -> list[str]:
    """The rows of the page's table for one type of label."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.startswith(f"| {name} |") and line.count("|") == len(WAYS_OUT) + 3]


def test_the_page_names_every_way_out() -> None:
    head = f"| labels | passed in as | {' | '.join(WAYS_OUT)} |"
    assert head in PAGE.read_text(encoding="utf-8").splitlines()
    assert (len(LABELS), len(WAYS_IN), len(WAYS_OUT)) >= (8, 6, 4)


@pytest.mark.parametrize("name", LABELS)
def test_labels_come_back_as_they_were(name: str, tmp_path: Path) -> None:
    """By every way in and out; what comes back must be the page's rows, which can be copied from a failure."""
    y = LABELS[name]
    truth = np.asarray(y)
    predictions: dict[tuple[str, str], np.ndarray[Any, Any]] = {}
    jobs: dict[tuple[str, str], Any] = {}
    for way, make in WAYS_IN.items():
        home = tmp_path / way
        home.mkdir()
        data, options = make(y, home)
        settings = {"rounds": 3, "engine": {"workers": 1}, "train": {"lr": 0.5}, "quiet": True, **options}
        run = hw.fit(data, method="fedavg", out=home / "run", **settings)
        model = run.model("a")
        samples: Any = frame_of(y) if way in TABLES else features(y)
        predictions[way, "run.model"] = model.predict(samples)
        predictions[way, "run.predict"] = run.predict(samples, None if way in ONE_TABLE else ["a", "b"] * (N // 2))
        predictions[way, "pickled"] = pickle.loads(pickle.dumps(model)).predict(samples)
        for form in ("torch", "onnx"):
            key = "ONNX, new process" if form == "onnx" else "torch, new process"
            jobs[way, key] = model.save(home / form, form), samples
        out = home / "predictions.csv"
        with pytest.raises(SystemExit, match="0"):
            main(["predict", str(home / "onnx"), str(write_samples(way, y, home / "x")), "-o", str(out), "--quiet"])
        predictions[way, "CSV of headwise predict"] = read_csv(out, name)
        assert type_of(model.classes_) == type_of(predictions[way, "run.model"])
        assert model.classes_.tolist() == sorted(set(truth.tolist()))
        assert model.score(samples, y) > 0.9
    predictions |= predict_in_new_process(tmp_path, jobs)
    for prediction in predictions.values():
        assert prediction.shape == (N,)
        assert (prediction == truth).mean() > 0.9
    found = [[name, way, *(type_of(predictions[way, out]) for out in WAYS_OUT)] for way in WAYS_IN]
    assert list_rows_of_page(name) == [f"| {' | '.join(row)} |" for row in found]
