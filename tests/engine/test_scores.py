"""Scores against scikit-learn, and how they combine over clients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from bench_of_tests import even_federation, play, prepare
from sklearn import metrics

from headwise.engine.client.scoring import score, summarize_clients
from headwise.log.metrics import Score, metrics_to_measure
from headwise.methods.fedavg import FedAvg


@pytest.mark.parametrize("seed", range(12))
def test_scores_are_those_of_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    classes, n = int(rng.integers(2, 8)), int(rng.integers(1, 60))
    y = rng.integers(0, rng.integers(1, classes + 1), n)  # often not all classes
    z = rng.standard_normal((n, classes)).astype(np.float32)
    guess = z.argmax(1)
    found = score(
        torch.from_numpy(z), torch.from_numpy(y), metrics_to_measure("classification", (), None), "classification"
    )
    assert found["n"] == n
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(y, guess))
    recall = metrics.recall_score(y, guess, labels=np.unique(y), average="macro", zero_division=0)
    assert found["balanced"] == pytest.approx(recall)
    assert found["f1"] == pytest.approx(metrics.f1_score(y, guess, average="macro", zero_division=0))
    shares = torch.from_numpy(z).double().softmax(1).numpy()
    assert found["loss"] == pytest.approx(metrics.log_loss(y, shares, labels=range(classes)), rel=1e-5)


def _scores(accuracies: list[float], sizes: list[int]) -> dict[int, Score]:
    both = enumerate(zip(accuracies, sizes, strict=True))
    return {c: {"n": n, "accuracy": a, "balanced": a, "f1": a, "loss": 1 - a} for c, (a, n) in both}


def test_means_weigh_samples_or_clients() -> None:
    found = summarize_clients(_scores([0.5, 1.0], [30, 10]))
    assert found["accuracy"] == pytest.approx(0.625)
    assert found["client_mean"] == pytest.approx(0.75)
    assert found["client_std"] == pytest.approx(0.25)
    assert found["loss"] == pytest.approx(0.375)
    assert (found["clients"], found["samples"]) == (2, 40)


def test_with_equal_test_sizes_both_means_are_the_same() -> None:
    found = summarize_clients(_scores(list(np.random.default_rng(0).random(25)), [12] * 25))
    assert found["accuracy"] == pytest.approx(found["client_mean"])
    row = play(prepare(FedAvg(), even_federation())).rows[-1]
    assert row["pre"]["accuracy"] == pytest.approx(row["pre"]["client_mean"])


@pytest.mark.parametrize(("clients", "worst"), [(5, 0.0), (10, 0.0), (19, 0.0), (20, 0.025), (30, 1 / 30)])
def test_the_worst_decile_is_the_mean_of_the_worst_tenth_but_at_least_one(clients: int, worst: float) -> None:
    accuracies = [c / clients for c in range(clients)]
    found = summarize_clients(_scores(accuracies[::-1], list(range(1, clients + 1))))
    assert found["worst_decile"] == pytest.approx(worst)


def test_nobody_to_measure_is_no_error() -> None:
    assert summarize_clients({}) == {"clients": 0, "samples": 0}
