"""Every message of `headwise data check`, with the broken file that triggers it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from own_files import HEAD, ROWS, TABLE, describe, findings, npz, picture, pictures, table

from headwise.data.own.description import Description
from headwise.data.own.load import load
from headwise.errors import DataError

X = np.arange(12.0).reshape(6, 2)
Y = np.array([0, 1, 0, 1, 0, 1])
CLASSES = TABLE.replace('target = "ill"', 'target = "ill"\nclasses = ["no", "yes"]')


def messages_of(d: Description, kind: str) -> list[str]:
    return [str(f) for f in findings(d) if f.kind == kind]


def message_of_run(d: Description) -> str:
    """The error that a run raises."""
    with pytest.raises(DataError) as error:
        load(d)
    return str(error.value)


@pytest.mark.parametrize(
    ("kind", "row", "text", "place"),
    [
        (
            "missing label",
            "va,1,f,",
            TABLE,
            "row 8, column 'ill', client 'va': the target is missing, or is a word in missing that is not in classes.",
        ),
        (
            "unknown label",
            "va,1,f,maybe",
            CLASSES,
            "row 8, column 'ill', client 'va': 'maybe' is not one of the classes",
        ),
        ("not a number", "va,old,f,no", TABLE, "row 8, column 'age': 'old' is not a number"),
        ("infinite number", "va,inf,f,no", TABLE, "row 8, column 'age': it is infinite"),
        ("missing client", ",1,f,no", TABLE, "row 8, column 'hospital': the cell is empty"),
        ("wrong number of cells", "va,1,f", TABLE, "row 8: it has 3 cells, but there are 4 columns."),
    ],
)
def test_a_bad_row(tmp_path: Path, kind: str, row: str, text: str, place: str) -> None:
    d = table(tmp_path, [*ROWS, row], text=text)
    assert messages_of(d, kind) == [
        s for s in [messages_of(d, kind)[0]] if s.startswith(f"{tmp_path / 'patients.csv'}, {place}")
    ]
    assert message_of_run(d) == messages_of(d, kind)[0]
    assert messages_of(table(tmp_path, ROWS, text=text), kind) == []


def test_a_class_that_only_one_client_has_and_one_that_nobody_has(tmp_path: Path) -> None:
    d = table(
        tmp_path,
        [*ROWS, "va,5,f,dead"],
        text=TABLE.replace('target = "ill"', 'target = "ill"\nclasses = ["no","yes","dead","gone"]'),
    )
    assert [s.partition(": ")[2] for s in messages_of(d, "lonely class")] == [
        "only one client has the class 'dead'.",
        "no client has the class 'gone'.",
    ]


def test_a_client_with_one_class(tmp_path: Path) -> None:
    d = table(tmp_path, [*ROWS, "oslo,1,f,no", "oslo,2,f,no"])
    assert messages_of(d, "one class only")[0].endswith("client 'oslo': all its samples have the class 'no'.")


def test_missing_numbers_are_told_with_the_first_place(tmp_path: Path) -> None:
    assert messages_of(table(tmp_path), "missing value") == [
        f"{tmp_path / 'patients.csv'}, row 5, column 'age', client 'rome': 1 of 6 values are missing, "
        "here the first: they are filled."
    ]


def test_columns_that_say_nothing(tmp_path: Path) -> None:
    rows = [row.replace(",m,", ",f,") for row in ROWS]
    assert messages_of(table(tmp_path, rows), "constant column")[0].endswith("column 'sex': all values are the same.")
    rows = [",".join([c, "", *rest]) for c, _, *rest in (row.split(",") for row in ROWS)]
    assert messages_of(table(tmp_path, rows), "empty column")[0].endswith("column 'age': every value is missing.")
    rows = [f"va,{k},{'fm'[k % 2]},{'no' if k % 3 else 'yes'}" for k in range(12)]
    rows += [f"rome,0,{'fm'[k % 2]},{'no' if k % 3 else 'yes'}" for k in range(12)]
    assert messages_of(table(tmp_path, rows), "constant at a client")[0].endswith(
        "client 'rome': all values of this client are the same."
    )


def test_duplicates(tmp_path: Path) -> None:
    d = table(tmp_path, [*ROWS, "rome,61,f,yes"])
    assert messages_of(d, "duplicate over clients")[0].startswith(
        f"{tmp_path / 'patients.csv'}, row 8, client 'rome': the same as"
    )
    d = table(tmp_path, [*ROWS, "va,61,f,yes"])
    assert messages_of(d, "duplicate of a client")[0].endswith(
        "row 2: one may end up in training and the other in test."
    )
    rows = [f"{row},{part}" for row, part in zip([*ROWS, ROWS[0]], ["train"] * 4 + ["test"] * 3, strict=True)]
    text = TABLE + '[split]\nby = "column"\ncolumn = "part"\n'
    d = table(tmp_path, rows, f"{HEAD},part", text)
    assert messages_of(d, "duplicate in training and test")[0].endswith("row 2, which is in another part.")


def test_too_few_samples_and_parts_that_are_missing(tmp_path: Path) -> None:
    assert messages_of(table(tmp_path), "too few samples")[0].endswith("client 'va': it has 3 samples, fewer than 10.")
    text = TABLE + '[split]\nby = "column"\ncolumn = "part"\n'
    d = table(tmp_path, [f"{row},{'train' if row[0] == 'v' else 'test'}" for row in ROWS], f"{HEAD},part", text)
    assert messages_of(d, "no training samples")[0].endswith("client 'rome': it has no training samples.")
    assert messages_of(d, "no test samples")[0].endswith(
        "client 'va': it has no test samples, so its model is never evaluated."
    )
    d = table(tmp_path, [f"{row},later" for row in ROWS], f"{HEAD},part", text)
    parts = "train, val, validation, valid, test"
    assert messages_of(d, "unknown part")[0].endswith(f"column 'part': 'later' is not a part: use one of {parts}.")
    d = table(
        tmp_path,
        [f"{row},{'' if k == 2 else k}" for k, row in enumerate(ROWS)],
        f"{HEAD},when",
        TABLE + '[split]\nby = "time"\ncolumn = "when"\n',
    )
    assert messages_of(d, "missing time")[0].endswith("row 4, column 'when', client 'rome': the cell is empty.")


def test_many_findings_of_a_kind_are_counted(tmp_path: Path) -> None:
    d = table(tmp_path, [*ROWS, *["va,old,f,no"] * 9])
    assert len(messages_of(d, "not a number")) == 6
    assert messages_of(d, "not a number")[-1].endswith("4 more: not a number.")


def test_a_table_without_a_column_or_with_it_twice(tmp_path: Path) -> None:
    d = table(tmp_path, head=HEAD.replace("age", "Age"))
    assert messages_of(d, "missing column")[0].endswith("it has no column 'age': did you mean 'Age'?")
    d = table(
        tmp_path,
        head=HEAD.replace("age", "sex").replace("hospital", "hospital"),
        text=TABLE.replace('number = ["age"]', ""),
    )
    assert messages_of(d, "column twice")[0].endswith("it has several columns called 'sex'.")


def test_files_that_can_not_be_read(tmp_path: Path) -> None:
    d = table(tmp_path)
    d.place.write_bytes(b"hospital,age,sex,ill\nva,1,\xff,no\n")
    assert messages_of(d, "unreadable file")[0].endswith("it is not UTF-8 text: byte 26 is invalid.")
    d.place.unlink()
    assert messages_of(d, "unreadable")[0].endswith("but there is no such file or folder.")
    d.place.write_text(HEAD)
    assert messages_of(d, "unreadable") == [f"{d.place} has no samples that can be read."]


def test_jsonl(tmp_path: Path) -> None:
    d = describe(tmp_path, TABLE.replace("csv", "jsonl"))
    good = '{"hospital": "va", "age": 1, "sex": "f", "ill": "no"}'
    d.place.write_text(f'{good}\n{{"hospital": "va"}}\n[1]\n{good.replace("va", "rome").replace("no", "yes")}\n')
    assert messages_of(d, "missing key")[0].startswith(f"{d.place}, row 2: it has no 'age'")
    assert messages_of(d, "not a JSON object")[0] == f"{d.place}, row 3: it is not a JSON object."


def test_parquet_that_is_none(tmp_path: Path) -> None:
    d = describe(tmp_path, TABLE.replace("csv", "parquet"))
    d.place.write_text("PAR1 it is not")
    assert f"{d.place} can't be read as Parquet" in messages_of(d, "unreadable")[0]


def test_an_empty_client(tmp_path: Path) -> None:
    (tmp_path / "all" / "oslo").mkdir(parents=True)
    (tmp_path / "all" / "va").mkdir()
    (tmp_path / "all" / "va" / "a.csv").write_text("\n".join([HEAD, *ROWS]))
    text = TABLE.replace("patients.csv", "all").replace('client = "hospital"', "")
    assert messages_of(describe(tmp_path, text), "empty client")[0].endswith(
        "client 'oslo': the folder has no csv file (.csv, .tsv, .txt, .data, .csv.gz, .tsv.gz)."
    )
    (tmp_path / "all" / "oslo" / "b.csv").write_text(HEAD)
    assert messages_of(describe(tmp_path, text), "empty client")[0].endswith(
        "client 'oslo': it has no rows that can be read."
    )


@pytest.mark.parametrize(
    ("kind", "bob", "text"),
    [
        ("wrong lengths", {"x": X, "y": Y[:3]}, "x has 6 samples, but y has 3 targets."),
        ("mixed shapes", {"x": X[:, :1], "y": Y}, "but those before are float32 of shape [2]."),
        ("mixed shapes", {"x": X, "y": np.eye(6)}, "but those before are float64 of shape []."),
        ("wrong shape", {"x": X[:, 0], "y": Y}, "must have one row per sample: [samples, ...]."),
        ("empty client", {"x": X[:0], "y": Y[:0]}, "it has no samples that can be read."),
        ("missing array", {"x": X}, "it has x but no y."),
        ("missing array", {"z": X}, "it has z, but needs x and y, or x_train, y_train, x_test, y_test."),
        ("unreadable file", {"x": X, "y": np.array([None] * 6)}, "cannot be loaded when allow_pickle=False."),
    ],
)  # fmt: skip
def test_bad_arrays(tmp_path: Path, kind: str, bob: dict[str, object], text: str) -> None:
    (d,) = [npz(tmp_path, ann={"x": X, "y": Y}, bob=bob)]
    assert "bob" in messages_of(d, kind)[0]
    assert messages_of(d, kind)[0].endswith(text)
    assert message_of_run(d)


def test_labels_of_arrays(tmp_path: Path) -> None:
    text = 'format = "npz"\npath = "clients"\ntask = "classification"\n'
    d = npz(tmp_path, text, ann={"x": X, "y": Y}, bob={"x": X + 20, "y": Y + 0.5})
    assert messages_of(d, "float label")[0].endswith(
        "bob.npz, row 0, client 'bob': 0.5 is not a whole number, so it is not a class: choose task = \"regression\"."
    )
    d = npz(tmp_path, ann={"x": X, "y": Y}, bob={"x": np.where(X == 3, np.nan, X), "y": Y})
    assert messages_of(d, "missing value") == [
        f"{tmp_path}/clients/bob.npz, row 1, client 'bob': it contains NaN, which is replaced by the mean."
    ]
    d = npz(
        tmp_path,
        text.replace("classification", "regression"),
        ann={"x": X, "y": Y},
        bob={"x": X + 20, "y": np.where(Y, np.inf, 0.5)},
    )
    assert "bob.npz, row 1, client 'bob': the target" in messages_of(d, "missing label")[0]


def test_pictures(tmp_path: Path) -> None:
    d = pictures(tmp_path)
    assert [f for f in findings(d) if f.level == "error"] == []
    bad = tmp_path / "clients" / "bob" / "dog" / "x.png"
    picture(bad, (4, 6))
    assert messages_of(d, "mixed shapes")[0].startswith(f"{bad}: it has 4 x 6 pixels, but others have 4 x 4")
    picture(bad, (4, 4, 3))
    assert messages_of(d, "mixed channels")[0].startswith(f"{bad}: it is in colour, but others are not")
    bad.write_bytes(b"PNG?")
    assert messages_of(d, "unreadable image") == [f"{bad}: it is not a readable image."]
    bad.unlink()
    (tmp_path / "clients" / "eve").mkdir()
    assert messages_of(d, "empty client")[0].startswith(
        f"{tmp_path / 'clients' / 'eve'}, client 'eve': the folder has no images"
    )


def test_masks(tmp_path: Path) -> None:
    for client in ("ann", "bob"):
        for k in range(2):
            picture(tmp_path / "clients" / client / "images" / f"{k}.png", value=k)
            picture(tmp_path / "clients" / client / "masks" / f"{k}.png", value=k)
    text = 'format = "images"\npath = "clients"\ntask = "segmentation"\nclasses = ["sky", "tree"]\n'
    assert [f for f in findings(describe(tmp_path, text)) if f.level == "error"] == []
    picture(tmp_path / "clients" / "bob" / "masks" / "1.png", value=7)
    assert messages_of(describe(tmp_path, text), "unknown label")[0].endswith(
        "its mask has the value 7, but must have 0 to 1."
    )
    (tmp_path / "clients" / "bob" / "masks" / "1.png").unlink()
    assert "there is no mask" in messages_of(describe(tmp_path, text), "missing label")[0]
