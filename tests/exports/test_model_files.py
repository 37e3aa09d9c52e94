"""Exported models on files: `headwise export`, `predict` and `evaluate`."""

from __future__ import annotations

import csv
import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest
import torch
from hospitals import write_patients

import headwise as hw
from headwise.cli import main
from headwise.exports.network import build_preprocessing
from headwise.exports.quality import Quality, count_in_bins, list_bins, write_page
from headwise.exports.run_models import Models, encode_run_samples
from waiting import PATIENCE


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and va's model out of it."""
    home = tmp_path_factory.mktemp("home")
    data = write_patients(home)
    hw.run(
        hw.Experiment(method="fedrep", data=str(data), rounds=2, evaluate={"metric": "auc"}, engine={"workers": 1}),
        home / "run",
    )
    assert code("export", home / "run", "--client", "va", "--licence", "CC0-1.0", "-o", home / "va") == 0
    return home


def code(*words: Any) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    assert isinstance(stop.value.code, int)
    return stop.value.code


def columns(home: Path, client: str) -> dict[str, list[str]]:
    with (home / "patients.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["hospital"] == client]
    return {name: [row[name] for row in rows] for name in rows[0]}


def test_a_module_preprocesses_to_the_bit_as_the_run_did(home: Path) -> None:
    models = Models(hw.Run(home / "run"))
    for c in range(3):
        inputs = models.of(c).inputs
        samples = models.data.parts[c].train
        x = encode_run_samples(models.data, inputs, models.data.dataset.x[samples])
        assert models.data.fitted is not None
        expected = models.data.fitted.transform(models.data.dataset.x[samples], np.full(len(samples), c))
        assert np.isnan(x).any()
        assert (build_preprocessing(inputs)(torch.from_numpy(x)).numpy() == expected).all()


def test_raw_cells_give_the_same_wherever_the_model_is(home: Path) -> None:
    model = hw.Run(home / "run").model("va")
    loaded = hw.load_model(home / "va")
    cells = columns(home, "va")
    assert loaded.classes == ("healthy", "ill")
    assert set(model.predict(cells)) <= {"healthy", "ill"}
    np.testing.assert_allclose(loaded.predict_proba(cells), model.predict_proba(cells), rtol=0, atol=1e-5)
    assert (loaded.predict(cells) == model.predict(cells)).all()
    other = hw.Run(home / "run").model("cleveland").predict_proba(cells)
    assert np.abs(other - model.predict_proba(cells)).max() > 1e-3


def test_a_card_says_what_the_model_is(home: Path) -> None:
    card = json.loads((home / "va" / "card.json").read_text())
    run = hw.Run(home / "run")
    assert card["of"] == {
        "kind": "personal", "client": run.number_of("va"), "name": "va", "moment": "pre", "round": 2, "which": "last"
    }  # fmt: skip
    assert (card["task"], card["licence"], card["privacy"]) == ("classification", "CC0-1.0", None)
    lines = [row for row in run.clients if row["client"] == card["of"]["client"] and row["round"] == 2]
    assert card["metrics"]["test"] == lines[0].get("pre", {}).get("test")
    assert card["training"]["method"]["name"] == "fedrep"
    assert card["inputs"]["preprocessing"]["columns"][0]["name"] == "age"
    assert "one-hot coding" in card["inputs"]["inside"]
    assert "hash words by CRC-32" in card["inputs"]["outside"]
    assert card["reading"]["path"] == ""
    assert str(home) not in json.dumps(card)


def test_predictions_of_a_file(home: Path, tmp_path: Path) -> None:
    """The same in all three forms; a row's number is the one in an editor."""
    for ending in ("csv", "json", "parquet"):
        assert code("predict", home / "va", home / "patients.csv", "-o", tmp_path / f"out.{ending}") == 0
    with (tmp_path / "out.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["sample"]) for row in rows] == list(range(120))
    objects = json.loads((tmp_path / "out.json").read_text())
    table = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    for row, as_json, in_table in zip(rows, objects, table, strict=True):
        assert row["prediction"] == as_json["prediction"] == in_table["prediction"]
        probabilities = [float(row["p(healthy)"]), float(row["p(ill)"])]
        assert probabilities == [as_json["p(healthy)"], as_json["p(ill)"]]
        assert sum(probabilities) == pytest.approx(1, abs=1e-6)
        assert row["prediction"] == ("healthy", "ill")[int(np.argmax(probabilities))]


def test_only_one_clients_samples_of_a_description(home: Path, tmp_path: Path) -> None:
    assert code("predict", home / "va", home / "data.toml", "--client", "va", "-o", tmp_path / "out.json") == 0
    rows = json.loads((tmp_path / "out.json").read_text())
    (tmp_path / "out.json").write_text("mine")
    assert code("predict", home / "va", home / "data.toml", "-o", tmp_path / "out.json") == 2
    assert (tmp_path / "out.json").read_text() == "mine"
    expected = hw.load_model(home / "va").predict(columns(home, "va"))
    assert [row["prediction"] for row in rows] == expected.tolist()
    assert [row["sample"] for row in rows] == list(range(0, 120, 3))


def test_unknown_categories_are_told_once(home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [f"50,200,{sex},pain" for sex in ["f", "x", "", "?", "NA", "x", "y"]] + ["50,200,z,pain"] * 5000
    (tmp_path / "t.csv").write_text("\n".join(["age,chol,sex,note", *rows]) + "\n")
    assert code("predict", home / "va", tmp_path / "t.csv", "-o", tmp_path / "out.csv") == 0
    warning = "Column 'sex': 5,003 of its cells have categories that did not occur in training ('x', 'y', 'z')"
    assert [r.getMessage() for r in caplog.records] == [f"{warning}, and count as missing."]
    caplog.clear()
    model = hw.load_model(home / "va")
    cells = {"age": [50], "chol": [200], "note": ["pain"]}
    assert model.predict({**cells, "sex": ["x"]}) == model.predict({**cells, "sex": [None]})
    assert [r.getMessage()[:26] for r in caplog.records] == ["Column 'sex': 1 of its cel"]


def test_predicting_does_not_need_torch(home: Path, tmp_path: Path) -> None:
    """Nor anything that trains."""
    words = ["predict", str(home / "va"), str(home / "patients.csv"), "-o", str(tmp_path / "out.csv")]
    program = f"from headwise.cli import cli; import sys; cli.main({words!r}, standalone_mode=False)\n"
    program += "sys.exit(any(name in sys.modules for name in ('torch', 'headwise.engine', 'headwise.methods')))"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr


def test_evaluation(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--client", "va", "-o", tmp_path / "page.html", "--json")
    assert code("evaluate", home / "va", home / "data.toml", *flags) == 0
    result = json.loads(capsys.readouterr().out)
    held_out = hw.Run(home / "run").rows("va").own
    assert result["held_out"]
    cells = {name: [values[i] for i in held_out] for name, values in columns(home, "va").items()}
    predicted = hw.load_model(home / "va").predict(cells)
    right = [("healthy", "ill")[int(y)] == p for y, p in zip(cells["ill"], predicted, strict=True)]
    assert 0 <= result["scores"]["auc"] <= 1, "the run was judged by it"
    assert result["scores"]["accuracy"] == pytest.approx(np.mean(right))
    assert [result["confusion"][0][0] + result["confusion"][1][1], np.sum(result["confusion"])] == [
        sum(right),
        len(right),
    ]
    assert sum(b["n"] for b in result["bins"]) == len(right)
    page = (tmp_path / "page.html").read_text()
    assert "The model of client va on data.toml" in page
    assert page.count("<rect") == len(result["bins"])
    assert "http" not in page.replace("http-equiv", "")


def test_reliability_by_hand() -> None:
    bins = list_bins(count_in_bins(np.array([0.55, 0.51, 0.95, 1.0]), np.array([True, False, True, True])))
    assert [(b.low, b.n, b.accuracy) for b in bins] == [(0.5, 2, 0.5), (0.9, 2, 1.0)]
    assert bins[0].confidence == pytest.approx(0.53)


def test_names_of_classes_do_not_inject_markup(home: Path, tmp_path: Path) -> None:
    each = [{"class": "<b>", "samples": 1, "predicted": 1, "precision": 1.0, "recall": 1.0, "F1": 1.0}]
    judged = Quality({"n": 1}, [], each, [[1, 0], [0, 0]], [], None, [])
    model = hw.load_model(home / "va")
    of = {"kind": "personal", "name": "<script>alert(1)</script>"}
    model = dataclasses.replace(model, card={**model.card, "classes": ["<b>", "b"], "of": of})
    write_page(model, Path("<script>alert(2)"), judged, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>alert" not in page
    assert "<b>" not in page


@pytest.mark.parametrize(
    ("table", "verb", "why"),
    [
        ("age,chol,sex\n50,200,f\n", "predict", "it has no column 'note'"),
        ("age,chol,sex,note\nold,200,f,x\n", "predict", "t.csv, row 2, column 'age': 'old' is not a number"),
        ("age,chol,sex,note\n50,200,f,x\n50,inf,f,x\n", "predict", "row 3, column 'chol': 'inf' is infinite"),
        ("age,chol,sex,note\n50,200,f\n", "predict", "it has 3 cells, but there are 4 columns"),
        ("age,chol,sex,note\n50,200,f,x\n", "evaluate", "it has no column 'ill'"),
        ("age,chol,sex,note,ill\n50,200,f,x,2\n", "evaluate", "row 2: '2' is not one of the classes: 0, 1"),
        ("", "predict", "it has no column 'age'"),
    ],
)
def test_tables_that_do_not_fit(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], table: str, verb: str, why: str
) -> None:
    """One sentence, and nothing half-written."""
    (tmp_path / "t.csv").write_text(table)
    out = tmp_path / ("out.csv" if verb == "predict" else "page.html")
    assert code(verb, home / "va", tmp_path / "t.csv", "-o", out) == 2
    assert why in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["t.csv"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["export", "run", "--client", "vaa", "-o", "new"], "has no client 'vaa': did you mean 'va'?"),
        (["export", "run", "-o", "new"], "--client is missing"),
        (["export", "run", "--global", "-o", "new"], "fedrep has no global model"),
        (["export", "run", "--client", "va", "--moment", "before", "-o", "new"], "moment is 'before'"),
        (["export", "run", "--client", "va", "--round", "first", "-o", "new"], "round is 'first'"),
        (["export", "run", "--client", "va", "-o", "va"], "already exists and is not an empty folder"),
        (["predict", "va", "patients.csv", "-o", "out.txt"], "must end in .csv, .json, .parquet"),
        (["predict", "va", "patients.xls", "-o", "out.csv"], "has no known ending"),
        (["predict", "va", "gone.csv", "-o", "out.csv"], "gone.csv"),
        (["predict", "va", "data.toml", "--client", "x y", "-o", "new.csv"], "has no samples of client 'x y'"),
        (["predict", "run", "patients.csv", "-o", "out.csv"], "it is not a folder that headwise export wrote"),
    ],
)
def test_mistakes_are_one_sentence(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], why: str
) -> None:
    monkeypatch.chdir(home)
    before = sorted(p.name for p in home.iterdir())
    assert code(*words) == 2
    err = capsys.readouterr().err
    assert why in err and err.count("\n") == 1
    assert sorted(p.name for p in home.iterdir()) == before


def test_all_clients_at_once_in_torchs_format(home: Path, tmp_path: Path) -> None:
    assert code("export", home / "run", "--all", "--format", "torch", "-o", tmp_path / "all", "--quiet") == 0
    assert sorted(p.name for p in (tmp_path / "all").iterdir()) == ["basel", "cleveland", "va"]
    cells = columns(home, "va")
    probabilities = [hw.load_model(tmp_path / "all" / name).predict_proba(cells) for name in ("va", "basel")]
    np.testing.assert_allclose(probabilities[0], hw.load_model(home / "va").predict_proba(cells), rtol=0, atol=1e-5)
    assert np.abs(probabilities[0] - probabilities[1]).max() > 1e-3
