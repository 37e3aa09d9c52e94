"""The type of labels is known from the data, however they come in, so that predictions can be compared with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from headwise.cli import main
from headwise.data.dataset import Dataset, cast_labels
from headwise.data.own.description import read_description
from headwise.data.own.load import load
from headwise.data.own.objects import store
from headwise.errors import DataError

X = np.random.default_rng(0).normal(size=(12, 3))
WHICH = np.arange(12) % 2
LABELS: dict[str, tuple[Any, str]] = {
    "int": (WHICH, "int"),
    "bool": (WHICH > 0, "bool"),
    "float": (WHICH.astype(float), "float"),
    "text": (np.array(["no", "yes"])[WHICH], "str"),
    "digits as text": (np.array(["0", "1"])[WHICH], "str"),
    "objects": (WHICH.astype(object), "int"),
    "words for nothing": (np.array(["None", "NA"])[WHICH], "str"),
    "dates": (np.array(["2024-01-01", "2025-02-03"], "datetime64[ns]")[WHICH], "datetime"),
    "tensor": (torch.tensor(WHICH), "int"),
    "column": (WHICH[:, None], "int"),
    "Int64": (pd.Series(WHICH, dtype="Int64"), "int"),
    "boolean": (pd.Series(WHICH > 0, dtype="boolean"), "bool"),
    "category": (pd.Series(WHICH + 4).astype("category"), "int"),
    "category of texts": (pd.Series(np.array(["no", "yes"])[WHICH]).astype("category"), "str"),
}
FRAME = pd.DataFrame(X, columns=["a", "b", "c"])


def dataset(clients: Any, folder: Path, **settings: Any) -> Dataset:
    return load(read_description(store(clients, folder, **settings))).dataset


@pytest.mark.parametrize("name", LABELS)
@pytest.mark.parametrize("way", ["arrays", "frame and labels", "one frame"])
def test_labels_keep_their_type(tmp_path: Path, way: str, name: str) -> None:
    y, label_type = LABELS[name]
    flat = np.asarray(y).ravel()
    if way == "arrays":
        data = dataset({"u": (X, y), "v": (X, y)}, tmp_path)
    elif way == "frame and labels":
        data = dataset({"u": (FRAME, y), "v": (FRAME, y)}, tmp_path)
    else:
        table = FRAME.assign(who=["u", "v"] * 6, y=y if isinstance(y, pd.Series) else flat)
        data = dataset(table.sort_values("who", kind="stable"), tmp_path, client="who", target="y")
        flat = flat[np.argsort(np.arange(12) % 2, kind="stable")]
    assert data.label_type == label_type
    assert data.task == "classification"
    labels = cast_labels(data.classes, data.label_type)[data.y]
    assert (labels[:12] == flat).all()


CELLS = [(["0", "1"], "int"), (["no", "yes"], "str"), (["False", "True"], "bool"), (["true", "false"], "bool"),
         (["007", "008"], "str"), (["-1", "1"], "int"), (["1e3", "2e3"], "float")]  # fmt: skip


@pytest.mark.parametrize(("cells", "label_type"), CELLS)
def test_a_table_without_types_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cells: list[str], label_type: str
) -> None:
    """And data.toml stores the type, where a user can correct it."""
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("who,a,y\n" + "".join(f"{'uv'[i % 2]},{i + 0.5},{cells[i // 2 % 2]}\n" for i in range(12)))
    with pytest.raises(SystemExit) as end:
        main(["data", "init", "t.csv", "--clients", "who", "--target", "y"])
    assert end.value.code == 0
    text = Path("data.toml").read_text()
    assert f'label_type = "{label_type}"' in text
    data = load(read_description(Path("data.toml"))).dataset
    assert data.label_type == label_type
    Path("data.toml").write_text(text.replace(f'label_type = "{label_type}"', 'label_type = "str"'))
    assert load(read_description(Path("data.toml"))).dataset.label_type == "str"
    if cells == ["no", "yes"]:
        Path("data.toml").write_text(text.replace('label_type = "str"', 'label_type = "datetime"'))
        with pytest.raises(DataError, match=r"^label_type is 'datetime', but the classes are "):
            load(read_description(Path("data.toml")))


def test_missing_targets_are_listed_together(tmp_path: Path) -> None:
    y = WHICH.astype(float)
    y[[1, 4, 7]] = np.nan
    with pytest.raises(DataError, match="values in y that are missing or infinite, in 3 samples: 1, 4, 7"):
        dataset({"u": (X, y), "v": (X, WHICH)}, tmp_path)
    with pytest.raises(DataError, match=r"row 1, .*: the target is missing, and in rows 4, 7 \(3 in all\)\."):
        dataset({"u": (FRAME, y), "v": (FRAME, WHICH.astype(float))}, tmp_path)


def test_tables_whose_columns_have_numbers(tmp_path: Path) -> None:
    table = pd.DataFrame(np.c_[X, WHICH, np.arange(12) // 6])
    data = dataset(table, tmp_path, client=4, target=3)
    assert data.owners == ("0", "1")
    assert data.recipe is not None
    assert [c.name for c in data.recipe.columns] == ["0", "1", "2"]
    assert dataset({"u": (pd.DataFrame(X), WHICH), "v": (pd.DataFrame(X), WHICH)}, tmp_path).classes == ("0", "1")


@pytest.mark.parametrize(
    ("y", "names", "problem"),
    [(np.zeros((12, 2)), ("p",), "target names 1 columns, but y has 2"),
     (WHICH, ("a",), "target is 'a', which is a column of x already")],
)  # fmt: skip
def test_targets_that_do_not_fit_their_names(tmp_path: Path, y: Any, names: Any, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        dataset({"u": (FRAME, y), "v": (FRAME, y)}, tmp_path, target=names)


def test_a_column_twice(tmp_path: Path) -> None:
    table = pd.DataFrame(np.c_[X, WHICH], columns=["a", "a", "b", "y"]).assign(who="u")
    with pytest.raises(DataError, match="several columns called 'a'"):
        dataset(table, tmp_path, client="who", target="y")


def test_types_of_columns_decide(tmp_path: Path) -> None:
    table = pd.DataFrame({
        "few": [1, 2] * 6, "zip": [f"0{i % 3}123" for i in range(12)], "truth": [True, False] * 6,
        "airport": pd.Series([101, 102] * 6).astype("category"),
        "sentence": pd.Series(["one of several long sentences"] * 12).astype("category"),
        "who": ["u", "v"] * 6, "y": [0, 0, 1, 1] * 3,
    })  # fmt: skip
    data = dataset(table, tmp_path, client="who", target="y")
    assert data.recipe is not None
    kinds = {c.name: c.kind for c in data.recipe.columns}
    assert kinds == {
        "few": "number", "truth": "number", "zip": "category", "airport": "category", "sentence": "category"
    }  # fmt: skip
