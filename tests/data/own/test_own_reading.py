"""The same samples from every kind of file, targets of every task, and parts as the data says them."""

from __future__ import annotations

import builtins
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_files import HEAD, ROWS, TABLE, describe, npz, picture, pictures, table

from headwise.data.own import raw
from headwise.data.own.layout import fingerprint
from headwise.data.own.load import Loaded, load
from headwise.errors import DataError

X = np.arange(12.0).reshape(6, 2)
Y = np.array([0, 1, 0, 1, 0, 1])


def parquet(path: Path, columns: dict[str, list[Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path)


def columns() -> dict[str, list[Any]]:
    cells = [row.split(",") for row in ROWS]
    columns: dict[str, list[Any]] = {name: [row[k] for row in cells] for k, name in enumerate(HEAD.split(","))}
    return {**columns, "age": [float(c) if c else None for c in columns["age"]]}


def expect(loaded: Loaded) -> None:
    """What the six rows come to, from whatever file."""
    raw = loaded.raw
    data = loaded.dataset
    who = [raw.owners[k] for k in raw.owner]
    by_age = np.argsort(raw.x[:, 0])  # the one without is last
    assert raw.x[by_age, 0].tolist()[:-1] == [38, 44, 50, 61, 70]
    assert [who[i] for i in by_age] == ["rome", "va", "rome", "va", "va", "rome"]
    assert [raw.categories["sex"][int(k)] for k in raw.x[by_age, 1]] == ["f", "m", "f", "f", "m", "m"]
    assert data.classes == ("no", "yes")
    assert data.y[by_age].tolist() == [0, 0, 0, 1, 1, 1]
    assert data.y.dtype == np.int64
    assert np.isnan(raw.x[by_age, 0][-1])


def test_one_csv_file(tmp_path: Path) -> None:
    expect(load(table(tmp_path)))


def test_another_delimiter_no_header_and_quotes(tmp_path: Path) -> None:
    text = TABLE.replace(
        'client = "hospital"', 'client = "hospital"\ndelimiter = ";"\nheader = ["hospital", "age", "sex", "ill"]'
    )
    d = describe(tmp_path, text)
    d.place.write_text("\n".join(row.replace(",", ";").replace("va", '"va"') for row in ROWS), "utf-8-sig")
    expect(load(d))


def test_jsonl(tmp_path: Path) -> None:
    from headwise.disk.jsontext import to_json

    d = describe(tmp_path, TABLE.replace("csv", "jsonl"))
    cells = columns()
    d.place.write_text("".join(to_json({k: v[i] for k, v in cells.items()}) + "\n\n" for i in range(6)))
    expect(load(d))


def test_parquet(tmp_path: Path) -> None:
    d = describe(tmp_path, TABLE.replace("csv", "parquet"))
    parquet(d.place, columns())
    expect(load(d))


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    d = describe(tmp_path, TABLE.replace("csv", "parquet"))
    d.place.write_bytes(b"PAR1")
    usual = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return usual(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(DataError, match=r"is Parquet, which needs pyarrow: pip install 'headwise\[tables\]'"):
        load(d)


@pytest.mark.parametrize("name", ["{}.csv", "{}/all.csv"])
def test_a_file_or_a_folder_per_client(tmp_path: Path, name: str) -> None:
    for client in ("va", "rome"):
        path = tmp_path / "all" / name.format(client)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([HEAD, *(row for row in ROWS if row.startswith(client))]))
    expect(load(describe(tmp_path, TABLE.replace("patients.csv", "all").replace('client = "hospital"', ""))))


def test_files_of_parts(tmp_path: Path) -> None:
    for client in ("va", "rome"):
        (tmp_path / "all" / client).mkdir(parents=True)
        mine = [row for row in ROWS if row.startswith(client)]
        for k, part in enumerate(("train", "val", "test")):
            (tmp_path / "all" / client / f"{part}.csv").write_text("\n".join([HEAD, mine[k]]))
    text = TABLE.replace("patients.csv", "all").replace('client = "hospital"', "") + '[split]\nby = "files"\n'
    loaded = load(describe(tmp_path, text))
    expect(loaded)
    order = np.argsort(loaded.raw.x[:, 0])
    assert loaded.dataset.part is not None
    assert loaded.dataset.part[order].tolist() == [2, 1, 0, 0, 2, 1]


def test_one_table_needs_a_client_column(tmp_path: Path) -> None:
    from headwise.errors import ConfigError

    with pytest.raises(ConfigError, match="client is missing: path is one table"):
        load(table(tmp_path, text=TABLE.replace('client = "hospital"', "")))


@pytest.mark.parametrize(
    "when", [["5", "1", "9", "10", "3", "2"], [f"2024-01-{d}" for d in ("05", "01", "09", "10", "03", "02")]]
)
def test_a_split_by_time(tmp_path: Path, when: list[str]) -> None:
    rows = [f"{row},{t}" for row, t in zip(ROWS, when, strict=True)]
    text = TABLE + '[split]\nby = "time"\ncolumn = "when"\nratio = "1:1:1"\n'
    part = load(table(tmp_path, rows, f"{HEAD},when", text)).dataset.part
    assert part is not None
    assert part.tolist() == [2, 0, 1, 2, 1, 0]  # va: 5, 1, 3 and rome: 9, 10, 2


def test_categories_are_the_same_however_a_file_writes_whole_numbers(tmp_path: Path) -> None:
    raw = load(table(tmp_path, ["va,1,1.0,no", "rome,2,1,yes", "va,3,0.0,no", "rome,4,0,yes"])).raw
    assert raw.categories["sex"] == ["1", "0"]


def test_images_and_how_they_are_resized(tmp_path: Path) -> None:
    loaded = load(pictures(tmp_path))
    assert loaded.raw.x.shape == (12, 1, 4, 4)
    assert loaded.raw.x.dtype == np.uint8
    assert (loaded.raw.owners, loaded.dataset.classes) == (("ann", "bob"), ("cat", "dog"))
    assert loaded.dataset.y.tolist() == [0, 0, 0, 1, 1, 1] * 2
    assert loaded.raw.x[1, 0, 0, 0] == 46
    picture(tmp_path / "clients" / "bob" / "dog" / "x.png", (6, 6, 3), 9)
    text = 'format = "images"\npath = "clients"\n[preprocess]\nsize = [2, 3]\nchannels = 3\n'
    assert load(describe(tmp_path, text)).raw.x.shape == (13, 3, 2, 3)


def test_images_that_a_table_names(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", value=3)
    picture(tmp_path / "b.png", value=4)
    text = TABLE.replace('number = ["age"]\ncategory = ["sex"]', 'image = ["file"]')
    d = table(tmp_path, ["va,a.png,yes", "rome,b.png,no"], "hospital,file,ill", text)
    assert load(d).raw.x[:, 0, 0, 0].tolist() == [3, 4]


def test_texts_are_hashed_alike_everywhere(tmp_path: Path) -> None:
    text = (
        TABLE.replace('number = ["age"]\ncategory = ["sex"]', 'text = ["note"]')
        + '[preprocess]\ntexts = "tokens"\nlength = 4\nbuckets = 50\n'
    )
    rows = ['va,"Good news, good",yes', "rome,,no"]
    loaded = load(table(tmp_path, rows, "hospital,note,ill", text))
    assert loaded.dataset.vocabulary == 50
    first = loaded.raw.x[0].tolist()
    assert first[0] == first[2] == zlib.crc32(b"good") % 49 + 1
    assert first[3] == 0, "punctuation is no word"
    assert loaded.raw.x[1].tolist() == [0, 0, 0, 0]


def test_arrays_of_each_client(tmp_path: Path) -> None:
    d = npz(tmp_path, ann={"x": X, "y": Y}, bob={"x": X, "y": Y + 1})
    loaded = load(d)
    assert loaded.dataset.classes == ("0", "1", "2")
    assert loaded.raw.x.dtype == np.float32
    assert loaded.dataset.y.tolist() == [*Y, *(Y + 1)]
    text = 'format = "npz"\npath = "clients"\n[split]\nby = "files"\n'
    parts = {"x_train": X, "y_train": Y, "x_test": X[:2], "y_test": Y[:2]}
    part = load(npz(tmp_path, text, ann=parts, bob=parts)).dataset.part
    assert part is not None
    assert np.bincount(part).tolist() == [12, 0, 4]


@pytest.mark.parametrize(
    ("y", "task", "dtype", "shape"),
    [
        (Y, "classification", np.int64, (6,)),
        (Y + 0.5, "regression", np.float32, (6, 1)),
        (np.arange(12).reshape(6, 2), "regression", np.float32, (6, 2)),
        (np.eye(6, 3), "multilabel", np.float32, (6, 3)),
        (np.zeros((6, 2, 2), int), "segmentation", np.int64, (6, 2, 2)),
        (np.array(list("abcabc")), "classification", np.int64, (6,)),
    ],
)
def test_a_task_is_guessed_and_said(tmp_path: Path, y: Any, task: str, dtype: Any, shape: tuple[int, ...]) -> None:
    loaded = load(npz(tmp_path, ann={"x": np.zeros((6, 1, 2, 2)), "y": y}))
    assert (loaded.dataset.task, loaded.dataset.y.dtype, loaded.dataset.y.shape) == (task, dtype, shape)
    assert loaded.dataset.notes[0].startswith(f"task is {task}: ")


def test_many_whole_numbers_are_a_quantity(tmp_path: Path) -> None:
    rows = [f"va,{k},f,{100 + k}" for k in range(40)]
    assert load(table(tmp_path, rows)).dataset.task == "regression"
    assert load(table(tmp_path, rows[:20])).dataset.task == "classification"


def test_several_labels(tmp_path: Path) -> None:
    text = TABLE.replace('target = "ill"', 'target = "ill"\nseparator = "|"')
    loaded = load(table(tmp_path, ["va,1,f,a|b", "rome,2,m,b", "va,3,m,"], text=text))
    assert (loaded.dataset.task, loaded.dataset.classes) == ("multilabel", ("a", "b"))
    assert loaded.dataset.y.tolist() == [[1, 1], [0, 1], [0, 0]]
    loaded = load(
        table(
            tmp_path,
            ["va,1,1,0", "rome,0,1,1"],
            text=TABLE.replace('"ill"', '["sex", "ill"]').replace('category = ["sex"]', ""),
        )
    )
    assert loaded.dataset.y.tolist() == [[1, 0], [1, 1]]


def test_masks_of_black_and_white(tmp_path: Path) -> None:
    for k in range(2):
        picture(tmp_path / "clients" / "ann" / "images" / f"{k}.png", value=k)
        picture(tmp_path / "clients" / "ann" / "masks" / f"{k}.png", value=255 * k)
    y = load(describe(tmp_path, 'format = "images"\npath = "clients"\ntask = "segmentation"\n')).dataset.y
    assert y.shape == (2, 4, 4)
    assert np.unique(y).tolist() == [0, 1]


def test_what_is_large_lies_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    d = table(tmp_path, ROWS * 30)
    small = load(d).dataset.x
    monkeypatch.setattr(raw, "LARGE", 100)
    mapped = load(d).dataset.x
    assert isinstance(mapped, np.memmap)
    assert not isinstance(small, np.memmap)
    assert mapped.tobytes() == small.tobytes()


def test_the_fingerprint_is_that_of_all_files(tmp_path: Path) -> None:
    d = npz(tmp_path, ann={"x": X, "y": Y}, bob={"x": X, "y": Y})
    before = fingerprint(d)
    assert fingerprint(d) == before
    np.savez(tmp_path / "clients" / "bob.npz", x=X + 1, y=Y)
    assert fingerprint(d) != before
