"""Objects from Python become files named by their content; bad ones get a sentence."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from own_files import ROWS, table
from torch.utils.data import TensorDataset

from data_frames import Frame
from headwise.data.own.check import check
from headwise.data.own.description import read_description
from headwise.data.own.load import Loaded, load
from headwise.data.own.objects import store
from headwise.errors import ConfigError, DataError

X = np.arange(12.0).reshape(6, 2)
Y = np.array([0, 1, 0, 1, 0, 1])


class HubDataset:
    """As much of a Hugging Face Dataset as there must be."""

    def __init__(self, **cells: list[Any]) -> None:
        self.cells = cells
        self.column_names = list(cells)
        self.features = {"label": SimpleNamespace(names=["bad", "good"]), "text": SimpleNamespace()}

    def __getitem__(self, name: str) -> list[Any]:
        return self.cells[name]

    def __len__(self) -> int:
        return len(next(iter(self.cells.values())))


FRAME = Frame(age=[61.0, float("nan"), 50.0, 38.0], sex=["f", "m", "m", "f"], ill=[True, False, True, False])


def load_stored(clients: Any, folder: Path, **settings: Any) -> Loaded:
    return load(read_description(store(clients, folder, **settings)))


@pytest.mark.parametrize(
    "mine",
    [
        (X, Y),
        (torch.tensor(X), torch.tensor(Y)),
        (X.tolist(), Y.tolist()),
        TensorDataset(torch.tensor(X), torch.tensor(Y)),
    ],
)
def test_arrays_tensors_lists_and_torch_data_sets(tmp_path: Path, mine: Any) -> None:
    loaded = load_stored({"va": mine, 7: mine}, tmp_path)
    assert loaded.raw.owners == ("va", "7")
    assert isinstance(loaded.dataset.x, np.memmap)
    assert loaded.dataset.x.tolist() == [*X.tolist()] * 2
    assert loaded.dataset.y.tolist() == [*Y] * 2
    assert loaded.dataset.part is None


@pytest.mark.parametrize("val", [[], [(X[:1], Y[:1])]])
def test_own_parts(tmp_path: Path, val: list[Any]) -> None:
    mine = ((X, Y), *val, TensorDataset(torch.tensor(X[:2]), torch.tensor(Y[:2])))
    loaded = load_stored({"va": mine, "rome": mine}, tmp_path)
    assert loaded.dataset.part is not None
    assert np.bincount(loaded.dataset.part, minlength=3).tolist() == [12, 2 * len(val), 4]


def test_one_table_with_a_client_column(tmp_path: Path) -> None:
    frame = Frame(**FRAME.cells, who=["va", "rome", "va", "rome"])
    loaded = load_stored(frame, tmp_path, client="who", target="ill")
    assert loaded.raw.owners == ("va", "rome")
    assert loaded.dataset.y.tolist() == [1, 0, 1, 0]
    assert np.isnan(loaded.raw.x[1, 0])
    with pytest.raises(DataError, match="clients is one table: client and target must name its columns"):
        store(frame, tmp_path)
    with pytest.raises(ConfigError, match="target is 'il', which is not a column of clients"):
        store(frame, tmp_path, client="who", target="il")


def test_a_table_for_each_client(tmp_path: Path) -> None:
    loaded = load_stored({"va": FRAME, "rome": (FRAME, FRAME)}, tmp_path, target="ill")
    assert loaded.raw.owners == ("va", "rome")
    x = Frame(**{k: v for k, v in FRAME.cells.items() if k != "ill"})
    loaded = load_stored({"va": (x, FRAME["ill"]), "rome": (x, FRAME["ill"])}, tmp_path)
    assert loaded.dataset.y.tolist() == [1, 0, 1, 0] * 2
    with pytest.raises(DataError, match="client 'va' has a table: target must name the column to predict"):
        store({"va": FRAME}, tmp_path)
    with pytest.raises(DataError, match="client 'rome' has no column 'age', but 'va' does"):
        store({"va": FRAME, "rome": Frame(sex=["f"], ill=[1])}, tmp_path, target="ill")
    with pytest.raises(DataError, match="clients has both tables and arrays"):
        store({"va": FRAME, "rome": (X, Y)}, tmp_path, target="ill")


def test_findings_name_the_table_that_was_passed(tmp_path: Path) -> None:
    """And its row, counted from 0 as `frame.iloc` does, not those of the copy."""
    whole = Frame(age=[61.0, 50.0, "old", 38.0], ill=[1, 0, 1, 0], who=["va", "rome", "va", "rome"])
    number = {"features": {"number": ["age"]}}
    with pytest.raises(DataError, match=r"^clients, row 2, column 'age': 'old' is not a number"):
        load_stored(whole, tmp_path, client="who", target="ill", **number)
    mine = Frame(age=[61.0, 50.0], ill=[1, 0])
    bad = Frame(age=[20.0, "old"], ill=[1, 0])
    with pytest.raises(DataError, match=r"^clients, row 1 of test, column 'age', client 'rome': 'old' is not a number"):
        load_stored({"va": (mine, mine), "rome": (mine, bad)}, tmp_path, target="ill", **number)
    d = read_description(store({"va": mine, "rome": (mine, mine)}, tmp_path, target="ill"))
    messages = {str(f) for f in check(d)[1]}
    assert (
        "clients, row 0 of test, client 'rome': the same as clients, row 0 of train, which is in another part."
        in messages
    )
    assert "clients, client 'va': it has no test samples, so its model is never evaluated." in messages


def test_tables_that_are_too_large_to_copy(tmp_path: Path) -> None:
    message = (
        "clients has tables of more than copy_gb = {} GB, which is the most that is copied: write them to Parquet and "
        "pass the data.toml of headwise data init, or raise copy_gb."
    )
    long = Frame(text=["so many words " * 1000] * 2, ill=[1, 0])  # noticed while it is written: its cells are long
    for frame, most in ((FRAME, 0), (FRAME, 1e-8), (long, 1e-5)):
        with pytest.raises(DataError) as error:
            store({"va": frame}, tmp_path, target="ill", copy_gb=most)
        assert str(error.value) == message.format(f"{most:g}")
        assert not [*tmp_path.iterdir()]


def test_a_partitioner_of_hub_data_sets_keeps_class_names(tmp_path: Path) -> None:
    parts = [HubDataset(text=["a good day at sea", "what a bad day"], label=[1, 0])] * 2
    partitioner = SimpleNamespace(num_partitions=2, load_partition=lambda k: parts[k])
    loaded = load_stored(partitioner, tmp_path, target="label")
    assert loaded.raw.owners == ("0", "1")
    assert loaded.raw.form == "table"
    assert [loaded.dataset.classes[k] for k in loaded.dataset.y] == ["good", "bad"] * 2


def test_tensors_in_a_hub_data_set_and_its_own_parts(tmp_path: Path) -> None:
    """As `with_format("torch")` and `train_test_split` give them."""
    whole = HubDataset(age=[torch.tensor(k) for k in range(8)], label=[torch.tensor(k % 2) for k in range(8)])
    parts = {"test": HubDataset(age=[1], label=[1]), "train": whole}
    loaded = load_stored({"va": parts, "rome": parts}, tmp_path, target="label")
    assert loaded.dataset.classes == ("bad", "good")
    assert loaded.dataset.part is not None
    assert loaded.dataset.part.tolist() == [*[0] * 8, 2] * 2
    assert loaded.raw.x[:8, 0].tolist() == [*range(8)]


def test_the_same_content_has_the_same_name(tmp_path: Path) -> None:
    first = store({"va": (X, Y)}, tmp_path)
    assert store({"va": (X, Y)}, tmp_path) == first
    assert store({"va": (X + 1, Y)}, tmp_path) != first
    assert store({"va": (X, Y)}, tmp_path, task="regression") != first
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []
    np.save(first.parent / "x.npy", X.astype(np.float32) + 5)
    with pytest.raises(DataError, match="has changed: its sha256 no longer starts with"):
        load(read_description(first))


def test_what_is_too_large_is_named_by_its_path(tmp_path: Path) -> None:
    d = table(tmp_path)
    named = store(tmp_path / "data.toml", tmp_path / "run")
    assert read_description(named).place == d.place
    assert [p.name for p in (tmp_path / "run").iterdir()] == [named.name]
    d.place.write_text(d.place.read_text() + ROWS[0])
    with pytest.raises(DataError, match="has changed: its sha256 no longer starts with"):
        load(read_description(named))
    message = "but only copy_gb = 1e-09 GB are copied, and x of client 'va' is not mapped from a file: np.save it"
    with pytest.raises(DataError, match=message):
        store({"va": (X, Y)}, tmp_path, copy_gb=1e-9)


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ({"va": (X, Y[:3])}, "client 'va' has 6 samples, but 3 targets."),
        ({"va": ((X, Y), (X, Y[:3]))}, "client 'va' has 6 samples for test, but 3 targets."),
        (
            {"va": (X, Y), "b": (X[:, :1], Y)},
            "client 'b' has samples of type float32 and shape [1], but 'va' float32, [2].",
        ),
        ({"va": (X, Y), "b": (X, Y + 0.5)}, "client 'b' has targets of type float64 and shape [], but 'va' int64, []."),
        ({"va": (X[:0], Y[:0])}, "client 'va' has no samples."),
        ({"va": TensorDataset(torch.zeros(0, 2), torch.zeros(0))}, "client 'va' has no samples."),
        ({"va": (X[0], Y[0])}, "client 'va' has x of type float64 and shape [2], but needs [samples, ...]."),
        ({"va": X}, "client 'va' has a ndarray, but needs (x, y)."),
        ({"va": (X, Y, X)}, "client 'va' has 3 items, but needs (x, y), (train, test) or (train, val, test)."),
        ({"va": (X, Y), "": (X, Y)}, "clients has a duplicate or empty name."),
        ({1: (X, Y), "1": (X, Y)}, "clients has a duplicate or empty name."),
        ({}, "clients is empty, but needs at least one client."),
        ([X, Y], "clients is a list, but must be a mapping of names to (x, y)"),
        ({"va": [torch.zeros(2), torch.zeros(3)]}, "client 'va' has x of type float32 and shape [2]"),
    ],
)
def test_bad_objects_get_a_sentence(tmp_path: Path, clients: Any, message: str) -> None:
    with pytest.raises(DataError) as error:
        store(clients, tmp_path)
    assert str(error.value).startswith(message)
    assert list(tmp_path.iterdir()) == []


def test_bad_settings_and_labels_get_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tsk is not a setting: did you mean 'task'"):
        store({"va": (X, Y)}, tmp_path, tsk="regression")
    with pytest.raises(DataError, match=r"client 'va': 0\.5 is not a whole number, so it is not a class"):
        load_stored({"va": (X, Y + 0.5)}, tmp_path, task="classification")
    with pytest.raises(DataError, match="client 'va' has samples of different shapes"):
        store({"va": _Ragged()}, tmp_path)


class _Ragged:
    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: int) -> tuple[Any, int]:
        return np.zeros(i + 1), 0


def test_columns_that_are_left_out_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    days = [f"2024-01-{k + 1:02}" for k in range(30)]
    frame = Frame(shop=["a", "b"] * 15, day=days, age=[*range(30)], y=[0, 1] * 15)
    load_stored(frame, tmp_path, client="shop", target="y")
    message = "column 'day' is left out: a date; [split] by = \"time\" can use it"
    assert [r.getMessage() for r in caplog.records] == [message]
    caplog.clear()
    load_stored(frame, tmp_path, client="shop", target="y", features={"number": ["age"]})
    assert not caplog.records
