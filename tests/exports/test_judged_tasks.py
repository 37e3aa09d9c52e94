"""`headwise evaluate` and `adapt` for every task: its metrics, and a page with what fits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import headwise as hw
from headwise.cli import main
from headwise.data.own.objects import store
from headwise.engine.client.scoring import score
from headwise.errors import DataError
from headwise.exports.model import Prediction
from headwise.exports.quality import Totals, make_class_rows, make_quantity_rows, residuals
from headwise.exports.run_models import Models
from headwise.exports.samples import encode_targets, read_batches
from headwise.log.metrics import TASKS as EVERY
from headwise.log.metrics import Hits, Predictions, metrics

DATA = {
    "classification": "synthetic:samples=200:sites=2:features=5",
    "multilabel": "synthetic:samples=200:sites=2:features=5:task=multilabel",
    "regression": "synthetic:samples=200:sites=2:features=5:task=regression",
    "segmentation": "shapes",
}
MAIN = {"classification": "accuracy", "multilabel": "accuracy", "regression": "rmse", "segmentation": "iou"}


def say(capsys: pytest.CaptureFixture[str], *words: Any) -> dict[str, Any]:
    with pytest.raises(SystemExit) as end:
        main([*map(str, words), "--json"])
    printed = capsys.readouterr()
    assert end.value.code == 0, printed.err
    return json.loads(printed.out)


TASKS = [pytest.param(task, marks=[pytest.mark.long] if task == "segmentation" else []) for task in DATA]
"""the folders of masks below show the quicker half of segmentation"""


@pytest.mark.parametrize("task", TASKS)
def test_a_model_is_judged_as_its_run_judged_it(task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the client's own test samples, from a file; then a newcomer with the same samples adapts."""
    experiment = hw.Experiment(method="fedavg", data=DATA[task], partition="natural", rounds=1)
    run = hw.run(experiment, tmp_path / "run", data_dir=tmp_path)
    models = Models(run)
    model = models.of(1)
    part = models.data.parts[1]
    dataset = models.data.dataset
    np.savez(tmp_path / "test.npz", x=dataset.x[part.test], y=dataset.y[part.test])
    model.save(tmp_path / "model", "torch")
    result = say(capsys, "evaluate", tmp_path / "model", tmp_path / "test.npz", "-o", tmp_path / "page.html")
    in_run = model.card["metrics"]["test"]
    assert {k: v for k, v in result["scores"].items() if k in in_run} == pytest.approx(in_run, rel=1e-4)
    assert len(result["each"]) == len(dataset.classes)
    assert bool(result["confusion"]) == (task in ("classification", "segmentation"))
    assert bool(result["bins"]) != bool(result["residuals"]) == (task == "regression")
    page = (tmp_path / "page.html").read_text()
    assert [page.count(f"<h2>{h}") for h in ("Confusion of classes", "Calibration", "Errors")] == [
        int(bool(result[key])) for key in ("confusion", "bins", "residuals")
    ]
    assert model.card["floor"] == run.floors[1]
    np.savez(tmp_path / "train.npz", x=dataset.x[part.train][:40], y=dataset.y[part.train][:40])
    (mine,) = say(capsys, "adapt", run.path, tmp_path / "train.npz", "--epochs", 2, "--data-dir", tmp_path)["clients"]
    assert {MAIN[task], "loss"} <= mine["scores"]["0"].keys()
    assert mine["scores"]["2"]["loss"] != mine["scores"]["0"]["loss"]


def hits(task: str, z: Any, y: Any) -> Hits:
    return Predictions(torch.from_numpy(z), torch.from_numpy(y), task).hits


def test_figures_by_hand() -> None:
    """Two labels, three samples; then one quantity; then four pixels of two classes."""
    z = np.array([[1.0, -1], [1, 1], [-1, -1]])
    y = np.array([[1.0, 0], [0, 1], [0, 0]])
    rows = make_class_rows("multilabel", ["a", "b"], hits("multilabel", z, y))
    expected = {"label": "a", "samples with it": 1, "predicted": 2, "precision": 0.5, "recall": 1.0, "F1": 2 / 3}
    assert rows[0] == expected
    assert rows[1]["F1"] == 1
    (row,) = make_quantity_rows("regression", ["kg"], np.array([[1.0], [5.0]]), np.array([[2.0], [2.0]]))
    assert [row[k] for k in ("mean", "mean error", "mean absolute error", "R²")] == [2, 1, 2, None]
    assert row["RMSE"] == pytest.approx(5**0.5)
    scores = np.array([[[[2.0, 2], [0, 0]], [[1, 1], [1, 1]]]])
    rows = make_class_rows("segmentation", ["sky", "sea"], hits("segmentation", scores, np.array([[[0, 1], [1, 1]]])))
    figures = [[*row.values()] for row in rows]
    assert figures == [["sky", 1, 2, 0.5, 2 / 3], ["sea", 3, 2, 2 / 3, 0.8]]
    one = hits("classification", np.array([[1.0, 0]]), np.array([0]))
    assert make_class_rows("classification", ["a", "b"], one)[1]["recall"] is None


@pytest.mark.parametrize("task", EVERY)
@pytest.mark.parametrize("cuts", [[], [1], [3, 4, 9]])
def test_batches_give_what_all_samples_at_once_give(task: str, cuts: list[int]) -> None:
    """Every metric that there is; without AUC and its like, no scores are kept."""
    rng = np.random.default_rng(0)
    pixels = (2, 3) if task == "segmentation" else ()
    z = rng.normal(size=(12, 3, *pixels)).astype(np.float32)
    numbers = {"multilabel": rng.integers(0, 2, (12, 3)), "regression": rng.normal(size=(12, 3))}
    y = numbers[task].astype(np.float32) if task in numbers else rng.integers(0, 3, (12, *pixels))
    able = [m for m in metrics() if task in m.tasks and m.source == m.name]
    for chosen in (able, [m for m in able if m.needs != "all"]):
        measured = Totals(task, chosen)
        for part in np.split(np.arange(12), cuts):
            measured.add(Prediction(z[part], torch.from_numpy(z[part]).softmax(1).numpy()), y[part])
        assert measured.scores() == pytest.approx(score(torch.from_numpy(z), torch.from_numpy(y), chosen, task))
        assert measured.bins[0].sum() == {"multilabel": 36, "regression": 0, "segmentation": 72}.get(task, 12)
    assert ("kept" in vars(measured)) == (task == "regression")


def test_residuals_by_hand() -> None:
    (differences,) = residuals(["kg"], np.array([[1.0], [np.inf], [3.0]]), np.array([[1.0], [0.0], [1.0]]))
    assert (sum(differences.counts), differences.counts[0], differences.counts[-1]) == (2, 1, 1), (
        "what is infinite has no place"
    )
    assert differences.points == [(1.0, 1.0), (1.0, 3.0)]
    assert (differences.edges[0], differences.edges[-1]) == (0, 2)


def card(task: str, classes: list[str], **reading: Any) -> dict[str, Any]:
    return {"task": task, "classes": classes, "reading": reading, "inputs": {"shape": [1, 2, 2]}}


@pytest.mark.parametrize(
    ("card", "y", "why"),
    [
        (card("multilabel", ["a", "b"]), [[0, 2]], "label 0: b is 2, but must be 0 or 1"),
        (card("multilabel", ["a", "b"]), [0, 1], "needs 2 numbers a sample: a, b"),
        (card("regression", ["kg"]), [1.0, float("nan")], "label 1: kg is nan, but must be a finite number"),
        (card("regression", ["kg"]), ["heavy"], "but this model needs 1 numbers a sample: kg"),
        (card("segmentation", ["a", "b"]), np.zeros((1, 3, 2), int), "whole numbers of shape"),
        (card("segmentation", ["a", "b", "c"]), np.full((1, 2, 2), 7), "its mask has the value 7"),
        (card("classification", ["a", "b"], path=""), [0, 1], "label 0: .*0.* is not one of the classes: a, b"),
        (card("classification", ["a", "b"]), [[0], [1]], "must be one class a sample"),
    ],
)
def test_wrong_targets_get_a_sentence(card: dict[str, Any], y: Any, why: str) -> None:
    with pytest.raises(DataError, match=why):
        encode_targets(card, y, lambda i: f"label {i}", in_files=False)


def test_black_and_white_masks_and_numbers_of_public_classes() -> None:
    y = np.array([[[0, 255], [255, 0]]], np.uint8)
    assert encode_targets(card("segmentation", ["a", "b"]), y, str, in_files=False).tolist() == [[[0, 1], [1, 0]]]
    assert encode_targets(card("classification", ["a", "b"]), ["b", "0"], str, in_files=False).tolist() == [1, 0]


TABLE = """who,age,kg,tags,old,tall
a,1,2.5,x;y,0,1
a,2,3.5,y,1,1
b,3,1.5,,0,0
b,4,0.5,x,1,0
"""


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ('target = "kg"\ntask = "regression"', [[2.5], [3.5], [1.5], [0.5]]),
        ('target = ["old", "tall"]\ntask = "multilabel"', [[0, 1], [1, 1], [0, 0], [1, 0]]),
        ('target = "tags"\nseparator = ";"\ntask = "multilabel"', [[1, 1], [0, 1], [0, 0], [1, 0]]),
    ],
)
def test_targets_of_a_table(target: str, expected: list[list[float]], tmp_path: Path) -> None:
    """As the run itself reads them."""
    (tmp_path / "t.csv").write_text(TABLE)
    text = f'format = "csv"\npath = "t.csv"\nclient = "who"\n{target}\n[features]\nnumber = ["age"]\n'
    (tmp_path / "data.toml").write_text(text)
    run = hw.run(hw.Experiment(method="fedavg", data=str(tmp_path / "data.toml"), rounds=1), tmp_path / "run")
    (batch,) = read_batches(tmp_path / "data.toml", run.model("a"), labelled=True)
    assert batch.y is not None
    assert batch.y.tolist() == expected == Models(run).data.dataset.y.tolist()
    assert batch.clients == ["a", "a", "b", "b"]
    (tmp_path / "t.csv").write_text(TABLE.replace("2.5,x;y,0", "heavy,z,few"))
    with pytest.raises(DataError, match=r"t.csv, row 2: (kg|old) is '(heavy|few)', but must be a number|'z' is not"):
        list(read_batches(tmp_path / "data.toml", run.model("a"), labelled=True))


def test_masks_beside_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    for client in ("a", "b"):
        for name in ("images", "masks"):
            (tmp_path / "home" / client / name).mkdir(parents=True)
        for k in range(4):
            mask = np.zeros((8, 8), np.uint8)
            mask[:, k + 1 :] = 1
            picture = (mask * 150 + rng.integers(0, 50, (8, 8))).astype(np.uint8)
            for name, each in (("images", picture), ("masks", mask)):
                Image.fromarray(each).save(tmp_path / "home" / client / name / f"{k}.png")
    (tmp_path / "data.toml").write_text('format = "images"\npath = "home"\ntask = "segmentation"\n')
    experiment = hw.Experiment(method="fedavg", data=str(tmp_path / "data.toml"), rounds=1)
    hw.run(experiment, tmp_path / "run").model("a").save(tmp_path / "model", "torch")
    result = say(capsys, "evaluate", tmp_path / "model", tmp_path / "data.toml")
    assert (result["scores"]["n"], result["clients"], np.sum(result["confusion"])) == (2, ["a", "b"], 2 * 64), (
        "a quarter of the samples"
    )
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="is a table, but this model takes images: a folder of image files"):
        list(read_batches(tmp_path / "t.csv", hw.load_model(tmp_path / "model")))
    (tmp_path / "home" / "b" / "masks" / "0.png").unlink()
    with pytest.raises(SystemExit) as end:
        main(["evaluate", str(tmp_path / "model"), str(tmp_path / "data.toml")])
    assert end.value.code == 2
    assert "is missing" in capsys.readouterr().err


def test_stored_arrays_and_files_with_parts(tmp_path: Path) -> None:
    """What `headwise.fit` stored has all clients in one array; an NPZ file may have its three parts."""
    rng = np.random.default_rng(0)
    mine = {name: (rng.normal(size=(12, 3)).astype(np.float32), np.array(["no", "yes"] * 6)) for name in ("a", "b")}
    data = store(mine, tmp_path / "stored")
    run = hw.run(hw.Experiment(method="fedavg", data=str(data), rounds=1), tmp_path / "run")
    (batch,) = read_batches(data, run.model("a"), labelled=True, client="b")
    assert (batch.raw == mine["b"][0]).all()
    assert batch.y is not None
    assert (batch.clients, batch.y.tolist()) == (["b"] * 12, [0, 1] * 6)
    x, y = mine["a"]
    np.savez(tmp_path / "parts.npz", x_train=x[:8], y_train=y[:8], x_test=x[8:], y_test=y[8:])
    batches = list(read_batches(tmp_path / "parts.npz", run.model("a"), labelled=True))
    assert [len(each.names) for each in batches] == [8, 4]
    with pytest.raises(DataError, match="has no samples of client 'c'"):
        list(read_batches(data, run.model("a"), client="c"))
