"""The messages of commands about a user's own data, and where they locate a mistake."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from saying import Headwise

import headwise as hw
from data_frames import Frame
from headwise.errors import HeadwiseError

X = np.arange(80.0).reshape(40, 2)
Y = np.arange(40) % 2


def test_a_table_instead_of_its_description(headwise: Headwise, here: Path) -> None:
    (here / "x.csv").write_text("a,b\n1,2\n")
    result = headwise("run", "--data", "x.csv")
    hint = "headwise data init x.csv writes a data.toml, which data takes"
    assert (result.code, result.err) == (2, f"headwise: data is 'x.csv', which is not a data set but a path: {hint}.\n")
    assert "data is 'y.csv', but there is no such file" in headwise("run", "--data", "y.csv").err


def test_columns_without_names_are_listed_in_their_order(headwise: Headwise, here: Path) -> None:
    (here / "x.csv").write_text("\n".join([",".join(map(str, range(k, k + 11))) for k in range(9)]))
    result = headwise("data", "init", "x.csv", "--clients", "zzz", "--target", "column 3").err
    assert "its columns are column 1, column 2, column 3" in result
    assert result.endswith("column 9, column 10, column 11.\n")


def test_init_says_which_array_is_too_short(headwise: Headwise, here: Path) -> None:
    (here / "clients").mkdir()
    np.savez(here / "clients" / "va.npz", x=X, y=Y[:7])
    result = headwise("data", "init", "clients")
    where = here / "clients" / "va.npz"
    assert result.code == 2
    assert result.err.endswith("va.npz, client 'va': x has 40 samples, but y has 7 targets.\n"), where
    assert not (here / "data.toml").exists()


def test_one_client_is_one(headwise: Headwise, here: Path) -> None:
    (here / "clients").mkdir()
    np.savez(here / "clients" / "va.npz", x=X, y=Y + 0.5)
    assert "describes 1 client with 40 samples of 2 features, 1 target." in headwise("data", "init", "clients").out
    np.savez(here / "clients" / "va.npz", x=X, y=Y)
    assert (
        "1 client with 40 samples of 2 features, 2 classes." in headwise("data", "init", "clients", "-o", "d.toml").out
    )
    shown = headwise("data", "show", "d.toml").out
    assert "natural, 1 client\n" in shown
    assert "One client has 30 training" in shown


def test_the_floor_of_labels_is_not_a_most_frequent_class(here: Path, headwise: Headwise) -> None:
    labels = np.stack([Y, np.arange(40) % 4 == 0], 1).astype(int)
    hw.fit({"va": (X, labels), "rome": (X, labels)}, rounds=1, out="run", evaluate={"metric": "accuracy"})
    assert "(each client's best constant prediction)" in headwise("resume", "run").out
    assert "dummy floor" in headwise("report", "run", "--table", "markdown").out


TABLE = Frame(age=[1.0, 2.0] * 20, ill=["no", "yes"] * 20, hospital=["va", "rome", "rome", "va"] * 10)


@pytest.mark.parametrize(
    ("clients", "settings", "message"),
    [
        (TABLE, {"client": "hosp", "target": "ill"}, "client is 'hosp', which is not a column of clients: did you mean "
         "'hospital'?"),
        (TABLE, {"client": "hospital", "target": "x"}, "target is 'x', which is not a column of clients: its columns "
         "are age, hospital, ill."),
        ({"va": (X, Y), "rome": (X, Y + (np.arange(40) == 8) / 2)}, {"task": "classification"}, "client 'rome' has "
         "targets of type float64 and shape [], but 'va' int64, []."),
        ({"va": (X, Y + 0.0), "rome": (X, Y + (np.arange(40) == 8) / 2)}, {"task": "classification"}, "row 8, client "
         "'rome': 0.5 is not a whole number, so it is not a class: choose task = \"regression\"."),
        ({"va": ((X, Y + 0.0), (X, Y + (np.arange(40) == 3) / 2))}, {"task": "classification"}, "row 3 of test, client "
         "'va': 1.5 is not a whole number, so it is not a class: choose task = \"regression\"."),
    ],
)  # fmt: skip
def test_mistakes_in_python_are_said_in_its_words(
    here: Path, clients: object, settings: dict[str, str], message: str
) -> None:
    with pytest.raises(HeadwiseError) as error:
        hw.fit(clients, rounds=1, out="run", **settings)
    assert str(error.value) == message
