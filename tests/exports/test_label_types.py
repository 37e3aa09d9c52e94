"""Labels come back in the type that was passed in, as docs/own-data.md prints it: by type, way in and way out."""

from __future__ import annotations

import pickle
import re
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
TYPES = {"int": "i", "bool": "b", "float": "f", "str": "U", "datetime": "M"}
"""numpy's kind of each type that comes back"""


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
PROGRAM = """
import pickle, sys
import headwise as hw
folder, samples, out = sys.argv[1:]
pickle.dump(hw.load_model(folder).predict(pickle.load(open(samples, "rb"))), open(out, "wb"))
"""


def predictions(model: Any, samples: Any, folder: Path, apart: bool) -> list[Any]:
    """By each way out: from the run, after export, pickled, and in a new process."""
    saved = model.save(folder / "model", "torch")
    loaded = hw.load_model(saved)
    ways = [model.predict(samples), loaded.predict(samples), pickle.loads(pickle.dumps(loaded)).predict(samples)]
    if apart:
        (folder / "samples").write_bytes(pickle.dumps(samples))
        command = [sys.executable, "-c", PROGRAM, str(saved), str(folder / "samples"), str(folder / "out")]
        subprocess.run(command, check=True, timeout=PATIENCE)
        ways.append(pickle.loads((folder / "out").read_bytes()))
    return ways


def table() -> dict[tuple[str, str], str]:
    """What the page says: the type that comes back, by type of label and way in."""
    rows = [line.split("|")[1:-1] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    head = next(row for row in rows if row[0].strip() == "labels passed in")
    cells = {row[0].strip(): row[1:] for row in rows if row[0].strip() in LABELS and len(row) == len(head)}
    return {
        (name, way.strip()): cell.strip()
        for name, each in cells.items()
        for way, cell in zip(head[1:], each, strict=True)
    }


def test_the_page_has_every_type_and_way() -> None:
    assert table().keys() == {(name, way) for name in LABELS for way in WAYS_IN}
    assert re.search(r"from the run, after export, pickled, and in a new\s+process", PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("way", WAYS_IN)
@pytest.mark.parametrize("name", LABELS)
def test_labels_come_back_as_they_were(name: str, way: str, tmp_path: Path) -> None:
    y = LABELS[name]
    data, options = WAYS_IN[way](y, tmp_path)
    engine = {"workers": 1}
    run = hw.fit(data, method="fedavg", rounds=3, out=tmp_path / "run", engine=engine, train={"lr": 0.5}, **options)
    model = run.model("a")
    is_table = way in ("a DataFrame", "DataFrames", "CSV")
    samples: Any = frame_of(y) if is_table else features(y)
    truth = np.asarray(y)
    expected = table()[name, way].split(",")[0]
    for prediction in predictions(model, samples, tmp_path, apart=way == "a DataFrame"):
        assert prediction.dtype.kind == TYPES[expected], prediction.dtype
        assert prediction.shape == (N,)
        assert (prediction == truth).mean() > 0.9
    assert model.classes_.dtype.kind == TYPES[expected]
    assert model.classes_.tolist() == sorted(set(truth.tolist()))
    assert model.score(samples, y) > 0.9
