"""Every metric against scikit-learn or a computation by hand, for every task that it applies to."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn import metrics as sk

from headwise.engine.client.scoring import score, summarize_clients
from headwise.errors import ConfigError
from headwise.log import formulas
from headwise.log.metrics import (
    OURS,
    TASKS,
    Metric,
    main_metric,
    mean,
    metrics,
    metrics_over_clients,
    metrics_to_measure,
)

Array = NDArray[Any]
EVERYTHING = {task: [m.name for m in OURS if task in m.tasks and m.source == m.name] for task in TASKS}


def measured(task: str, z: Array, y: Array) -> dict[str, float]:
    """All metrics of this task."""
    return score(torch.from_numpy(z), torch.from_numpy(y), metrics_to_measure(task, EVERYTHING[task], None), task)


def softmax(z: Array) -> Array:
    e = np.exp(z.astype(np.float64) - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def of_classes(seed: int, classes: int, n: int = 50) -> tuple[Array, Array]:
    """Coarse scores, so that some are equal, of samples of all classes."""
    rng = np.random.default_rng(seed)
    y = np.r_[np.arange(classes), rng.integers(0, classes, n)]
    return (rng.standard_normal((len(y), classes)) * 4).round().astype(np.float32) / 2, y


@pytest.mark.parametrize("seed", range(5))
def test_two_classes(seed: int) -> None:
    z, y = of_classes(seed, 2)
    found, p = measured("classification", z, y), softmax(z)[:, 1]
    assert found["auc"] == pytest.approx(sk.roc_auc_score(y, z[:, 1] - z[:, 0]), rel=1e-12)
    assert found["average_precision"] == pytest.approx(sk.average_precision_score(y, z[:, 1] - z[:, 0]), rel=1e-12)
    assert found["log_loss"] == pytest.approx(sk.log_loss(y, p), rel=1e-12)
    assert found["loss"] == pytest.approx(found["log_loss"], rel=1e-5), "the same in float32"


@pytest.mark.parametrize("seed", range(5))
def test_several_classes_are_each_against_the_rest(seed: int) -> None:
    z, y = of_classes(seed, 4)
    found, p = measured("classification", z, y), softmax(z).round(12)  # equal scores must be equal there, too
    assert found["auc"] == pytest.approx(sk.roc_auc_score(y, p, multi_class="ovr"), rel=1e-9)
    ones = np.eye(4, dtype=int)[y]
    assert found["average_precision"] == pytest.approx(sk.average_precision_score(ones, p), rel=1e-6)
    assert found["log_loss"] == pytest.approx(sk.log_loss(y, softmax(z)), rel=1e-12)


def test_classes_that_are_missing_from_the_samples_are_left_out() -> None:
    z, y = of_classes(0, 4)
    kept = y != 2
    p = softmax(z[kept]).round(12)
    each = [sk.roc_auc_score(y[kept] == k, p[:, k]) for k in (0, 1, 3)]
    assert measured("classification", z[kept], y[kept])["auc"] == pytest.approx(np.mean(each), rel=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_labels(seed: int) -> None:
    rng = np.random.default_rng(seed)
    z = (rng.standard_normal((40, 5)) * 4).round().astype(np.float32) / 2
    y = np.r_[np.zeros((1, 5)), np.ones((1, 5)), rng.integers(0, 2, (38, 5))].astype(np.float32)
    found, guess, p = measured("multilabel", z, y), z > 0, 1 / (1 + np.exp(-z.astype(np.float64)))
    assert found["accuracy"] == pytest.approx(1 - sk.hamming_loss(y, guess))
    assert found["f1"] == pytest.approx(sk.f1_score(y, guess, average="macro"))
    assert found["auc"] == pytest.approx(sk.roc_auc_score(y, z))
    assert found["average_precision"] == pytest.approx(sk.average_precision_score(y, z))
    each = [sk.log_loss(y[:, k], p[:, k]) for k in range(5)]
    assert found["log_loss"] == pytest.approx(np.mean(each), rel=1e-12)
    assert found["loss"] == pytest.approx(np.mean(each), rel=1e-5)
    hits, sure = guess == (y > 0.5), np.where(p > 0.5, p, 1 - p)
    assert found["ece"] == pytest.approx(calibration(hits.flatten(), sure.flatten()))


@pytest.mark.parametrize("targets", [1, 3])
def test_quantities(targets: int) -> None:
    rng = np.random.default_rng(targets)
    y = (rng.standard_normal((30, targets)) * 5 + 100).astype(np.float32)
    z = y + rng.standard_normal((30, targets)).astype(np.float32)
    found = measured("regression", z, y)
    assert found["mae"] == pytest.approx(sk.mean_absolute_error(y, z), rel=1e-6)
    assert found["rmse"] == pytest.approx(sk.root_mean_squared_error(y.astype(float), z.astype(float)), rel=1e-12)
    assert found["r2"] == pytest.approx(sk.r2_score(y.astype(float), z.astype(float)), rel=1e-12)
    assert found["loss"] == pytest.approx(sk.mean_squared_error(y, z), rel=1e-5)


def test_pixels() -> None:
    rng = np.random.default_rng(0)
    z, y = rng.standard_normal((6, 4, 5, 7)).astype(np.float32), rng.integers(0, 3, (6, 5, 7))
    z[:, 3] = -9  # a class that neither occurs nor is predicted
    found, guess = measured("segmentation", z, y), z.argmax(1).flatten()
    assert found["iou"] == pytest.approx(sk.jaccard_score(y.flatten(), guess, average="macro"))
    assert found["dice"] == pytest.approx(sk.f1_score(y.flatten(), guess, average="macro"))
    assert found["accuracy"] == pytest.approx((y.flatten() == guess).mean())
    flat = torch.from_numpy(z.transpose(0, 2, 3, 1).reshape(-1, 4))
    assert found["loss"] == pytest.approx(
        torch.nn.functional.cross_entropy(flat, torch.from_numpy(y.flatten())).item(), rel=1e-5
    )


def calibration(hits: Array, sure: Array) -> float:
    """In fifteen bins, by hand."""
    bins = np.minimum((sure * 15).astype(int), 14)
    gaps = [abs(hits[bins == b].mean() - sure[bins == b].mean()) * (bins == b).mean() for b in np.unique(bins)]
    return float(sum(gaps))


def test_calibration_error() -> None:
    z, y = of_classes(3, 4, n=200)
    sure = softmax(z).max(1)
    assert measured("classification", z, y)["ece"] == pytest.approx(calibration(z.argmax(1) == y, sure))
    three = np.log(np.array([[0.8, 0.2], [0.8, 0.2], [0.3, 0.7]]))  # of two that are 80 % sure, one is right
    expected = (abs(1 - 1.6) + abs(1 - 0.7)) / 3
    assert measured("classification", three, np.array([0, 1, 1]))["ece"] == pytest.approx(expected)


def test_ranks_by_hand() -> None:
    """Positives 0.9, 0.5 and 0.5, negatives 0.5 and 0.1: of six pairs, four are right and two are equal."""
    s, y = np.array([0.9, 0.5, 0.5, 0.5, 0.1]), np.array([1, 1, 1, 0, 0])
    found = measured("classification", np.stack([0 * s, s], 1), y)
    assert found["auc"] == 5 / 6
    assert found["average_precision"] == pytest.approx(1 / 3 * 1 + 2 / 3 * 3 / 4)


@pytest.mark.parametrize("y", [np.zeros(5, int), np.ones(5, int)])
def test_one_class_has_no_ranks(y: Array) -> None:
    found = measured("classification", np.random.default_rng(0).standard_normal((5, 2)), y)
    assert not {"auc", "average_precision"} & found.keys()
    assert {"accuracy", "log_loss", "ece"} <= found.keys()


def test_a_target_that_does_not_vary_has_no_r2() -> None:
    z = np.array([[1.0, 2.0], [3.0, 4.0]])
    assert "r2" not in measured("regression", z, np.full((2, 2), 7.0))
    half = measured("regression", z, np.array([[7.0, 1.0], [7.0, 2.0]]))
    assert half["r2"] == pytest.approx(sk.r2_score([1.0, 2.0], z[:, 1]))


def test_labels_that_nobody_has_or_predicts_have_no_f1() -> None:
    assert "f1" not in measured("multilabel", np.full((3, 2), -1.0), np.zeros((3, 2)))


def test_averages_skip_clients_that_are_not_measured_and_say_how_many_are() -> None:
    auc = next(m for m in OURS if m.name == "auc")
    scores = {0: {"n": 10, "auc": 0.5}, 1: {"n": 1000}, 2: {"n": 10, "auc": 1.0}}
    found = summarize_clients(scores, auc)
    assert (found["auc"], found["auc_clients"], found["clients"]) == (0.75, 2, 3)
    assert (found["client_mean"], found["client_std"], found["worst_decile"]) == (0.75, 0.25, 0.5)
    assert "auc_clients" not in summarize_clients({c: scores[c] for c in (0, 2)}, auc)


def test_errors_of_clients_combine_to_the_error_over_all_samples() -> None:
    rng = np.random.default_rng(0)
    z, y = rng.standard_normal((30, 1)), rng.standard_normal((30, 1))
    parts = {c: measured("regression", z[part], y[part]) for c, part in enumerate((slice(0, 5), slice(5, 30)))}
    rmse = main_metric(None, "regression")
    found, whole = summarize_clients(parts, rmse), measured("regression", z, y)
    assert found["rmse"] == pytest.approx(whole["rmse"])
    assert found["mae"] == pytest.approx(whole["mae"])
    assert found["worst_decile"] == max(part["rmse"] for part in parts.values()), "the highest error is the worst"


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
def test_the_scores_of_a_diverged_model_break_nothing(task: str, value: float) -> None:
    z = {"classification": np.ones((4, 3)), "segmentation": np.ones((4, 3, 2, 2))}.get(task, np.ones((4, 2)))
    y = {"classification": np.arange(4) % 3, "segmentation": np.zeros((4, 2, 2), int)}.get(task, np.eye(4, 2))
    z[1] = value
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = measured(task, z, y)
    ranks = {"auc", "average_precision", "accuracy", "iou", "dice", "f1", "balanced"}
    assert all(math.isfinite(found[name]) for name in ranks & found.keys())
    assert task == "regression" or ranks & found.keys()


@pytest.mark.parametrize("task", TASKS)
def test_the_order_of_samples_does_not_show(task: str) -> None:
    """Nor could batches or threads, which only group samples."""
    rng = np.random.default_rng(1)
    shape = {"classification": (200, 5), "segmentation": (40, 3, 4, 4)}.get(task, (200, 3))
    z = rng.standard_normal(shape)
    y = {"classification": rng.integers(0, 5, 200), "segmentation": rng.integers(0, 3, (40, 4, 4))}.get(
        task, rng.integers(0, 2, (200, 3)).astype(float)
    )
    order = rng.permutation(len(y))
    names = [m.name for m in OURS if task in m.tasks and m.source == m.name and m.name != "loss"]
    first, again = (score(torch.from_numpy(z[i]), torch.from_numpy(y[i]), metrics_to_measure(task, names, None), task)
                    for i in (slice(None), order))  # fmt: skip
    assert first == again


def test_exponentials_and_logarithms_are_right_to_the_last_bits() -> None:
    x = np.r_[np.linspace(-700, 700, 4001), np.random.default_rng(0).standard_normal(4000)]
    assert np.abs(formulas.exp(x) / np.exp(x) - 1).max() < 1e-15
    assert np.abs(formulas.log(np.exp(x)) - x).max() < 2e-13
    assert formulas.exp(np.array([0.0, -1e9, 1e9])).tolist() == [1.0, 5e-324, formulas.exp(np.array([709.0]))[0]]
    assert formulas.log(np.array([1.0, 2.0, 0.5])).tolist() == [0.0, math.log(2), -math.log(2)]


def test_names_are_checked_against_the_task() -> None:
    with pytest.raises(ConfigError, match=r"evaluate\.metric is 'mae', but the task is classification: "):
        metrics_to_measure("classification", (), "mae")
    with pytest.raises(ConfigError, match=r"evaluate\.metrics\[1\] is 'acu', but .*: did you mean 'auc'\?"):
        metrics_to_measure("classification", ("f1", "acu"), None)
    with pytest.raises(ConfigError, match=r"evaluate\.metric is 'client_mean'"):
        metrics_to_measure("classification", (), "client_mean")
    assert [m.name for m in metrics_to_measure("classification", ("f1",), "auc")] == ["f1", "auc"]
    assert [m.name for m in metrics_to_measure("classification", ("f1",), None)] == ["accuracy", "f1"]


def test_every_task_has_a_metric_that_applies_to_it() -> None:
    for task in TASKS:
        assert task in main_metric(None, task).tasks
        assert main_metric(None, task) in metrics_to_measure(task, (), None)
    assert {task for m in metrics() for task in m.tasks} == set(TASKS)


def test_what_is_said_about_clients_follows_the_metric() -> None:
    errors = Metric("errors", "errors", lambda said: None, mean, "down")
    told = {m.name: m for m in metrics_over_clients(errors)}
    assert [told[name].source for name in ("client_mean", "client_std", "worst_decile")] == ["errors"] * 3
    assert told["worst_decile"].better == told["client_mean"].better == "down"
    assert errors.gain(0.2, 0.5) == pytest.approx(0.3)
