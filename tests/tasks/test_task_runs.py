"""Runs in every task: they learn, they resume, and what can't be is refused in a sentence."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.app.checks import methods_for
from headwise.app.prepare import divide, prepare
from headwise.data.dataset import Dataset, Strata
from headwise.data.sources.diabetes import Diabetes
from headwise.data.sources.shapes import Shapes
from headwise.data.sources.synthetic import Synthetic
from headwise.errors import ConfigError
from headwise.settings.experiment import Experiment
from headwise.settings.options import TaskName, Train
from headwise.tasks.registry import objective_of

SHAPES = "shapes:samples=96:sites=3:noise=0.1"


def scores(run: hw.Run) -> tuple[float, float]:
    """The metric that judges the run at its end, and what a constant scores."""
    summary = run.summary()
    assert summary["floor"] is not None
    return summary[summary["metric"]]["pre"]["last"], summary["floor"]


def test_a_regression_learns(tmp_path: Path) -> None:
    experiment = Experiment(data="diabetes", clients=5, partition="iid", rounds=8, train=Train(lr=0.02))
    run = hw.run(experiment, tmp_path / "run", data_dir=tmp_path)
    error, floor = scores(run)
    assert error < 0.85 * floor
    assert run.manifest["experiment"]["task"] == "regression"


def test_a_segmentation_learns(tmp_path: Path) -> None:
    experiment = Experiment(
        data=SHAPES, partition="natural", rounds=12, method="fedper", model="fcn:8:3", train=Train(lr=0.3)
    )
    score, floor = scores(hw.run(experiment, tmp_path / "run", data_dir=tmp_path))
    assert score > floor + 0.05


def test_labels_learn(tmp_path: Path) -> None:
    data = "synthetic:samples=300:sites=3:task=multilabel"
    experiment = Experiment(data=data, partition="natural", rounds=6, train=Train(lr=0.2))
    score, floor = scores(hw.run(experiment, tmp_path / "run", data_dir=tmp_path))
    assert score > floor + 0.1


TABLE = "site,a,b,grade\n" + "".join(
    f"{'xyz'[k % 3]},{np.sin(k):.3f},{np.cos(3 * k):.3f},{20 * np.sin(k) + 300:.2f}\n" for k in range(60)
)
TOML = 'format = "csv"\npath = "t.csv"\nclient = "site"\ntarget = "grade"\n[features]\nnumber = ["a", "b"]\n'


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "t.csv").write_text(TABLE)
    (tmp_path / "data.toml").write_text(TOML)
    return tmp_path / "data.toml"


def test_a_guess_is_said_and_what_is_said_is_no_guess(own: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "headwise"):
        prepared = prepare(Experiment(data=str(own)), own.parent)
        assert prepared.experiment.task == prepared.plan.task == "regression"
        prepare(prepared.experiment, own.parent)
    assert caplog.messages == ["Task is regression: the target has numbers with decimals."]


def test_numbers_are_learned_by_their_deviation_and_measured_in_their_units(own: Path) -> None:
    data = prepare(Experiment(data=str(own)), own.parent).plan.data
    train = torch.cat([data.client(c).train.y for c in range(3)]).double()
    assert data.task.centre == pytest.approx(train.mean(0).tolist())
    assert data.task.spread == pytest.approx(train.std(0, correction=0).tolist())
    objective = objective_of(data.task)
    y = data.client(0).test.y
    scaled = (y - data.task.centre[0]) / data.task.spread[0]
    torch.testing.assert_close(objective.in_target_units(scaled), y)
    assert objective.loss(scaled, y).item() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"data": "diabetes", "method": "fedgmh"},
            "task is 'regression', but fedgmh can only do classification: choose",
        ),
        (
            {"data": "shapes", "method": "moon"},
            "'segmentation', but moon can only do classification and multilabel and",
        ),
        ({"data": "digits", "task": "multilabel"}, "task is 'multilabel', but digits is data for classification."),
        ({"data": "shapes", "model": "mlp"}, r"whose scores have the shape \(4,\), but task is 'segmentation', which"),
        ({"data": "digits", "model": "fcn"}, "model is FCN, which takes images whose pixels have classes"),
        ({"data": "diabetes", "train": {"label_smoothing": 0.1}}, "train.label_smoothing is 0.1, but task is 'regres"),
        ({"data": "digits", "train": {"class_weights": [1, 2]}}, "class_weights has 2 numbers, but must have one for"),
        ({"data": "digits", "train": {"class_weights": "even"}}, "train.class_weights is 'even': .*balanced"),
        ({"data": "diabetes", "privacy": {"clip": 1}}, "privacy.clip is 1, but task is 'regression', and the mean"),
        (
            {"privacy": {"clip": 1, "level": "example"}, "train": {"class_weights": "balanced"}},
            "privacy.level is 'example', but train.class_weights is 'balanced', which counts examples.",
        ),
    ],
    ids=str,
)
def test_what_can_not_be_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(Experiment(**changes), tmp_path)


def test_a_refusal_names_those_that_can(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        prepare(Experiment(data="diabetes", method="fedproto"), tmp_path)
    named = str(refusal.value).partition("choose one of ")[2].rstrip(".").split(", ")
    assert named == methods_for("regression")
    assert "fedavg" in named
    assert "fedproto" not in named


def test_own_data_says_its_task_but_once(own: Path) -> None:
    own.write_text(f'task = "regression"\n{TOML}')
    with pytest.raises(ConfigError, match=r"task is 'multilabel', but .*data.toml says 'regression'"):
        divide(Experiment(data=str(own), task="multilabel"), own.parent)


def test_an_experiment_decides_what_its_data_do_not_say(own: Path) -> None:
    (own.parent / "t.csv").write_text(TABLE.replace(".", "")[:400].rsplit("\n", 1)[0] + "\n")  # whole numbers
    federated = divide(Experiment(data=str(own), task="regression"), own.parent)
    assert federated.dataset.task == "regression"
    assert federated.dataset.notes == ()


def stratify(task: TaskName, y: np.ndarray, names: tuple[str, ...]) -> Strata:
    return Dataset(y, y, names, task=task).strata


def test_strata() -> None:
    ones = np.array([[0, 1], [1, 1], [0, 0]], np.float32)
    assert stratify("multilabel", ones, ("a", "b")).labels.tolist() == [1, 0, 2]
    assert stratify("multilabel", ones, ("a", "b")).names == ("a", "b", "no label")
    masks = np.array([[[0, 0], [0, 1]], [[0, 0], [0, 0]], [[1, 2], [2, 0]]])
    assert stratify("segmentation", masks, ("0", "1", "2")).labels.tolist() == [1, 0, 2]
    strata = stratify("regression", np.arange(100, dtype=np.float32)[:, None], ("t",))
    assert np.bincount(strata.labels).tolist() == [10] * 10
    assert strata.names[0] == "below 9.9"
    assert stratify("regression", np.ones((5, 1), np.float32), ("t",)).labels.tolist() == [1] * 5


def test_partitions_divide_numbers_by_their_strata(tmp_path: Path) -> None:
    federated = divide(Experiment(data="diabetes", partition="dirichlet:0.1", clients=6), tmp_path)
    means = [federated.dataset.y[p.train].mean() for p in federated.parts]
    assert np.ptp(means) > 30  # of 442 patients dealt out at random, means would differ by a few


@pytest.mark.parametrize(
    ("source", "shape", "task"),
    [
        (Diabetes(), (442, 1), "regression"),
        (Shapes(samples=10, sites=2, size=8), (10, 8, 8), "segmentation"),
        (Synthetic(samples=20, sites=2, task="multilabel"), (20, 3), "multilabel"),
        (Synthetic(samples=20, sites=2, task="regression", outputs=2), (20, 2), "regression"),
    ],
    ids=repr,
)
def test_built_in_toys(source: Any, shape: tuple[int, ...], task: str, tmp_path: Path) -> None:
    dataset = source.load(tmp_path)
    again = source.load(tmp_path)
    assert isinstance(dataset, Dataset)
    assert (dataset.y.shape, dataset.task) == (shape, task)
    assert np.array_equal(dataset.x, again.x)
    assert np.array_equal(dataset.y, again.y)
    if task == "segmentation":
        assert dataset.y.max() <= 3
        assert (dataset.x[:, 0][dataset.y > 0]).mean() > (dataset.x[:, 0][dataset.y == 0]).mean() + 0.5


def test_synthetic_classes_are_as_before_whatever_the_new_options() -> None:
    usual, other = (Synthetic(samples=50, sites=2, outputs=k).load(Path()) for k in (3, 7))
    assert np.array_equal(usual.x, other.x)
    assert np.array_equal(usual.y, other.y)
