"""What is sent, measured from the messages: the figures that the papers print for CIFAR-10."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import headwise as hw
from headwise.data.sources.cifar10 import BATCHES
from headwise.models.base import Task
from headwise.models.cnn import CNN

PARAMETERS, HEAD = 878_538, 5_130


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve made-up images in the files of CIFAR-10."""
    folder = tmp_path_factory.mktemp("cifar")
    rng = np.random.default_rng(0)
    for name in BATCHES:
        images = rng.integers(0, 256, (2, 3073), dtype=np.uint8)
        images[:, 0] = [0, 1]
        (folder / f"{name}.bin").write_bytes(images.tobytes())
    return folder


@pytest.mark.parametrize(
    ("method", "sent", "kilobytes"),
    [("fedavg", PARAMETERS, 3431.79), ("fedper", PARAMETERS - HEAD, 3411.75), ("lg-fedavg", HEAD, 20.04)],
)
def test_bytes_per_client_and_round(method: str, sent: int, kilobytes: float, cifar: Path, tmp_path: Path) -> None:
    experiment = hw.Experiment(
        method=method, data="cifar10", partition="iid", model="cnn", clients=3, rounds=2, sampling={"ratio": 0.67}
    )
    run = hw.run(experiment, tmp_path / "run", data_dir=cifar)
    trained = [line for line in run.clients if "bytes_up" in line]
    assert len(trained) == 4
    for line in trained:
        assert line["bytes_up"] == line["bytes_down"] == 4 * sent
        assert round(line["bytes_up"] / 1024, 2) == kilobytes
    for row in run.rounds:
        assert row["bytes_up"] == row["bytes_down"] == 2 * 4 * sent
        assert row["fields"] == {"up": {"w": 2 * 4 * sent}, "down": {"w": 2 * 4 * sent}}
        assert row["bytes_evaluation"] == 3 * 4 * sent
    assert run.summary()["bytes_up"] == 2 * 2 * 4 * sent
    assert run.summary()["bytes_evaluation"] == 2 * 3 * 4 * sent


def test_the_network_is_the_papers() -> None:
    model = CNN().build(Task((3, 32, 32), 10))
    assert model.params().numel() == PARAMETERS
    assert model.params("head").numel() == HEAD
