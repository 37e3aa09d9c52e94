"""Half-specified splits, dates, decimal commas and packed tables: each is read as it is meant, or refused."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from headwise.cli import main
from headwise.data.dataset import Dataset
from headwise.data.own.description import read_description
from headwise.data.own.load import load
from headwise.data.own.objects import store
from headwise.data.splits import cover_classes
from headwise.errors import ConfigError, DataError

ROWS = 16
TABLE = pd.DataFrame({
    "who": ["u", "v"] * 8,
    "a": np.random.default_rng(0).normal(size=ROWS),
    "y": [0, 0, 1, 1] * 4,
    "part": ["train"] * 10 + ["test"] * 6,
})  # fmt: skip


def dataset(clients: Any, folder: Path, **settings: Any) -> Dataset:
    return load(read_description(store(clients, folder, **settings))).dataset


def parts(table: pd.DataFrame, folder: Path, **split: Any) -> list[int]:
    data = dataset(table, folder, client="who", target="y", features={"number": ["a"]}, split=split)
    assert data.part is not None
    return data.part.tolist()


def test_a_column_of_parts_is_used(tmp_path: Path) -> None:
    assert parts(TABLE, tmp_path, column="part") == [0] * 10 + [2] * 6
    assert parts(TABLE, tmp_path, column="part") == parts(TABLE, tmp_path, by="column", column="part")


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"by": "ratio", "column": "part"},
        "split.column is 'part', but split.by is 'ratio': it must be 'column' or 'time'",
    ),
    ({"column": "part", "ratio": "8:1:1"}, "split.ratio is '8:1:1', but split.by is 'column'"),
    ({"by": "files", "ratio": "8:1:1"}, "split.ratio is '8:1:1', but split.by is 'files'"),
    ({"test": ["x"]}, r"split.test is \['x'\], but split.by is 'ratio'"),
    ({"by": "column", "column": "part", "format": "%Y"}, "split.format is '%Y', but split.by is 'column'"),
    ({"by": "time"}, "split.column does not name a column"),
    ({"colum": "part"}, "split.colum is not a setting"),
    ({"by": "chance"}, "split.by is 'chance'"),
]


@pytest.mark.parametrize(("split", "problem"), REFUSED)
def test_half_a_split_is_refused(tmp_path: Path, split: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parts(TABLE, tmp_path, **split)
    assert list(tmp_path.iterdir()) == []


def test_parts_and_a_split_are_refused(tmp_path: Path) -> None:
    x = np.zeros((8, 2))
    y = np.arange(8) % 2
    with pytest.raises(DataError, match="split is given, but clients have training and test samples already"):
        store({"u": ((x, y), (x, y))}, tmp_path, split={"ratio": "8:1:1"})


DAYS = pd.date_range("2011-10-25", periods=ROWS, freq="13D")  # over a new year, so that no text sorts like its date
WRITTEN = [
    "%Y-%m-%d",
    "%d.%m.%Y",
    "%m/%d/%Y",
    "%d/%m/%Y",
    "%d-%b-%Y",
    "%b %d, %Y",
    "%d %B %Y %H:%M",
    "%Y-%m-%dT%H:%M:%SZ",
]


@pytest.mark.parametrize("format", WRITTEN)
def test_dates_are_parsed(tmp_path: Path, format: str) -> None:
    order = np.random.default_rng(1).permutation(ROWS)
    table = TABLE.assign(day=DAYS.strftime(format)).iloc[order]
    test = np.array(parts(table, tmp_path, by="time", column="day")) == 2
    assert sorted(order[test]) == [12, 13, 14, 15]
    given = {"format": format} if format[:2] != "%Y" else {}
    assert (np.array(parts(table, tmp_path, by="time", column="day", **given)) == 2).tolist() == test.tolist()


def test_timestamps_and_numbers_are_times(tmp_path: Path) -> None:
    for times in (DAYS, np.arange(ROWS) * 10.5, [str(k) for k in range(90, 90 + ROWS)], DAYS.strftime("%Y%m%d")):
        assert parts(TABLE.assign(day=times), tmp_path, by="time", column="day") == [0] * 12 + [2] * 4


@pytest.mark.parametrize(
    ("cells", "problem"),
    [(["01/02/2012", "03/04/2012"], r"'01/02/2012' can be read as %d/%m/%Y or as %m/%d/%Y: set split.format"),
     (["2012-01-02", "soon"], r"row 1, .*'soon' is not a date written as ISO 8601"),
     (["2012-01-02", "03/04/2012"], "'03/04/2012' is not a date"),
     (["2012-01-02", "17"], "'17' is not a date"),
     (["01022012", "02022012"], "'01022012' is not a date"),
     (["2012-01-02", None], "the cell is empty")],
)  # fmt: skip
def test_dates_that_are_not_clear_are_refused(tmp_path: Path, cells: list[Any], problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        parts(TABLE.assign(day=cells * (ROWS // 2)), tmp_path, by="time", column="day")


def test_a_format_decides(tmp_path: Path) -> None:
    table = TABLE.assign(day=["01/02/2012", "03/01/2012"] * (ROWS // 2), who="u")
    first = parts(table, tmp_path, by="time", column="day", format="%d/%m/%Y")
    second = parts(table, tmp_path, by="time", column="day", format="%m/%d/%Y")
    assert sum(first[::2]) == sum(second[1::2]) == 8
    with pytest.raises(DataError, match="is not a date written as %Y"):
        parts(table, tmp_path, by="time", column="day", format="%Y")


def describe(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as end:
        main(["data", "init", name, "--clients", "who", "--target", "y"])
    assert end.value.code == 0
    return load(read_description(Path("data.toml"))).dataset


def test_decimal_commas_are_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = np.round(np.random.default_rng(2).normal(1500, 900, 40), 2)
    cells = [f"{n:,.2f}".translate(str.maketrans(",.", ".,")) for n in numbers]
    rows = [f"{'uv'[i % 2]};{cell};{cells[-i]}" for i, cell in enumerate(cells)]
    (tmp_path / "t.csv").write_text("\n".join(["who;a;y", *rows]))
    data = describe(tmp_path, "t.csv", monkeypatch)
    assert data.task == "regression"
    np.testing.assert_allclose(data.x[:, 0], numbers)
    np.testing.assert_allclose(data.y[1:, 0], numbers[:0:-1], rtol=1e-6)


def test_thousands_are_not_taken_for_decimals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f"{'uv'[i % 2]};{i + 0.5};{i},{i:03};{i // 2 % 2}" for i in range(1, 41)]
    (tmp_path / "t.csv").write_text("\n".join(["who;a;b;y", *rows]))
    data = describe(tmp_path, "t.csv", monkeypatch)
    assert data.recipe is not None
    assert [c.name for c in data.recipe.columns] == ["a"]
    assert "decimal" not in Path("data.toml").read_text()


def test_packed_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = TABLE.drop(columns="part").to_csv(index=False)
    (tmp_path / "t.csv").write_text(text)
    (tmp_path / "z.csv.gz").write_bytes(gzip.compress(text.encode()))
    plain = describe(tmp_path, "t.csv", monkeypatch)
    Path("data.toml").unlink()
    packed = describe(tmp_path, "z.csv.gz", monkeypatch)
    np.testing.assert_array_equal(plain.x, packed.x)
    for damaged in (b"\x1f\x8b nothing", gzip.compress(text.encode())[:-20]):
        (tmp_path / "z.csv.gz").write_bytes(damaged)
        with pytest.raises(DataError, match=r"z\.csv\.gz"):
            load(read_description(Path("data.toml")))


def test_a_packed_file_per_client(tmp_path: Path) -> None:
    for name in ("u", "v"):
        (tmp_path / f"{name}.csv.gz").write_bytes(gzip.compress(b"a,y\n1.5,0\n2.5,1\n3.5,1\n"))
    toml = tmp_path / "data.toml"
    toml.write_text('format = "csv"\npath = "."\ntarget = "y"\n[features]\nnumber = ["a"]\n')
    assert load(read_description(toml)).dataset.owners == ("u", "v")


def test_no_class_is_missing_where_it_need_not_be() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        labels = rng.choice(5, 24, p=[0.6, 0.2, 0.1, 0.06, 0.04])
        sizes = (16, 2, 6)
        order = cover_classes(rng.permutation(24), labels, sizes)
        assert sorted(order) == list(range(24))
        several = {k for k, n in zip(*np.unique(labels, return_counts=True), strict=True) if n > 1}
        assert several <= {*labels[order[:16]]}
        assert several <= {*labels[order[18:]]}


def test_what_covers_all_classes_already_is_left_alone() -> None:
    labels = np.array([0, 1] * 8)
    order = np.arange(16)
    assert cover_classes(order, labels, (12, 0, 4)).tolist() == order.tolist()


def test_own_data_covers_its_classes(tmp_path: Path) -> None:
    from headwise.app.prepare import divide
    from headwise.settings.experiment import experiment_from

    y = np.array([0] * 36 + [1] * 2 + [2] * 2)
    x = np.random.default_rng(0).normal(size=(40, 3))
    toml = store({"u": (x, y), "v": (x, y)}, tmp_path)
    for seed in range(5):
        data = divide(experiment_from({"data": str(toml), "method": "fedavg", "data_seed": seed}), tmp_path)
        for p in data.parts:
            assert {*data.dataset.y[p.train]} == {*data.dataset.y[p.test]} == {0, 1, 2}


def test_arrays_are_standardized_unless_they_are_to_stay(tmp_path: Path) -> None:
    from headwise.app.prepare import divide
    from headwise.settings.experiment import experiment_from

    x = np.random.default_rng(0).normal(500, 40, size=(40, 3))
    clients = {"u": (x, np.arange(40) % 2), "v": (x + 10, np.arange(40) % 2)}
    for settings, mean in (({}, 0), ({"preprocess": {"numbers": "as they are"}}, 505)):
        toml = store(clients, tmp_path, **settings)
        data = divide(experiment_from({"data": str(toml), "method": "fedavg"}), tmp_path)
        assert abs(float(data.clients().x.mean()) - mean) < 5


def test_many_whole_numbers_as_classes_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from headwise.app.prepare import prepare
    from headwise.settings.experiment import experiment_from

    x = np.random.default_rng(0).normal(size=(660, 3))
    toml = store({"u": (x, np.arange(660) % 33), "v": (x, np.arange(660) % 33)}, tmp_path)
    prepare(experiment_from({"data": str(toml), "method": "fedavg"}), tmp_path)
    assert 'the target has 33 different values; task = "regression" would predict' in caplog.text
