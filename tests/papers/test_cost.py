"""An estimate is the arithmetic of a few short rounds: the clock is replaced by a machine of known speed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headwise.data.federated import FederatedData
from headwise.data.splits import Parts
from headwise.papers import cost
from headwise.settings.experiment import Experiment

CLIENT, SAMPLE, TEST, ADAPTED = 0.5, 0.25, 0.125, 0.0625
"""seconds of a machine: for each client, training sample, test sample, and sample that a download is adapted to"""


def experiment(**settings: Any) -> Experiment:
    return Experiment(
        **{
            "data": "synthetic:120:3:5:sites=3",
            "partition": "iid",
            "model": "mlp:4",
            "clients": 4,
            "split": "2/1",
            "rounds": 10,
            "engine": {"workers": 1},
            **settings,
        }
    )


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> list[Experiment]:
    """A machine whose rounds take a known time; the experiments that were timed on it."""
    timed: list[Experiment] = []

    def seconds(experiment: Experiment, data: FederatedData, clients: list[Parts], samples: int) -> float:
        timed.append(experiment)
        trained = sum(CLIENT + SAMPLE * samples for _ in clients)
        if not experiment.evaluate.moments:
            return trained
        return trained + sum(TEST * min(cost.JUDGED, len(c.test)) + ADAPTED * samples for c in clients)

    monkeypatch.setattr(cost, "_time_round", seconds)
    return timed


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ({"evaluate": {"moments": []}}, 10 * 4 * (CLIENT + SAMPLE * 20)),
        ({"evaluate": {"moments": []}, "train": {"epochs": 3}}, 10 * 4 * (CLIENT + 3 * SAMPLE * 20)),
        ({"evaluate": {"moments": []}, "sampling": {"ratio": 0.5}}, 10 * 2 * (CLIENT + SAMPLE * 20)),
        ({"evaluate": {"moments": ["post"]}}, 10 * 4 * (CLIENT + SAMPLE * 20 + TEST * 10)),
        (
            {"evaluate": {"moments": ["post"], "every": 5}, "sampling": {"ratio": 0.5}},
            10 * 2 * (CLIENT + SAMPLE * 20) + 2 * 2 * TEST * 10 + 8 * 2 * 0.5 * TEST * 10,
        ),
        (
            {"evaluate": {"moments": ["post"], "every": 5}, "faults": {"on_failure": "skip"}},
            10 * 4 * (CLIENT + SAMPLE * 20 + TEST * 10),
        ),
        (
            {"evaluate": {"moments": ["pre"], "every": 5}},
            10 * 4 * (CLIENT + SAMPLE * 20) + 2 * 4 * (TEST * 10 + ADAPTED * 20),
        ),
    ],
    ids=[
        "training",
        "three epochs",
        "half of the clients",
        "after training",
        "after training, seldom",
        "with failures",
        "after a download",
    ],
)
def test_a_known_machine_is_estimated(
    machine: list[Experiment], tmp_path: Path, settings: dict[str, Any], seconds: float
) -> None:
    assert cost.Costs(tmp_path).seconds(experiment(**settings)) == pytest.approx(seconds)


def test_each_method_is_timed_once(machine: list[Experiment], tmp_path: Path) -> None:
    costs = cost.Costs(tmp_path)
    for method, seed in (("fedavg", 0), ("fedavg", 1), ("fedafk", 0), ("fedafk", 1)):
        costs.seconds(experiment(method=method, seed=seed))
    assert [e.method.name for e in machine] == ["fedavg"] * 4 + ["fedafk"] * 4
    assert {(e.train.epochs, e.sampling.ratio) for e in machine} == {(1, 1.0)}


@pytest.mark.parametrize("models", [["mlp:8"], ["mlp:8:1", "mlp:8:2", "mlp:8:3"]], ids=["one network", "three"])
def test_real_rounds_can_be_timed(tmp_path: Path, models: list[str]) -> None:
    assert cost.Costs(tmp_path).seconds(experiment(method="lg-fedavg", model=models)) > 0
