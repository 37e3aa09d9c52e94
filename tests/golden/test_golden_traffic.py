"""What travels, in bytes of the messages themselves, against the table of the papers: 4-byte scalars, KB = 1024 bytes.

The CIFAR-10 CNN has F = 873408 parameters in its body and L = 512 C + C in its head, 5130 for 10 classes and 51300 for
100; K = 512 features. Class means travel with their labels: c (K + 1) scalars for c classes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from headwise.data.dataset import Dataset
from headwise.data.federated import FederatedData
from headwise.data.splits import Parts
from headwise.methods.fedafk import FedAFK
from headwise.methods.fedah import FedAH
from headwise.methods.fedftha import FedFTHA
from headwise.methods.fedgh import FedGH
from headwise.methods.fedgmh import FedGMH
from headwise.methods.lg_fedavg import LGFedAvg
from headwise.models.cnn import CNN
from headwise.models.fedgh_cnn import FedGHCNN
from headwise.records import encode
from headwise.settings.options import Train
from headwise.testing.toy import play, toy_plan
from headwise.testing.watching import Listening

F, L10, L100, K = 873_408, 5_130, 51_300, 512


def images(owned: list[list[int]], classes: int, size: int = 32) -> FederatedData:
    """For each client one picture of each class that it owns, for training, and the same for test."""
    y = np.array([s for labels in owned for s in labels], dtype=np.int64)
    x = np.random.default_rng(0).integers(0, 256, (len(y), 3, size, size), dtype=np.uint8)
    names = tuple(map(str, range(classes)))
    parts = np.split(np.arange(len(y)), np.cumsum([len(labels) for labels in owned])[:-1])
    half = (0.5, 0.5, 0.5)
    return FederatedData(Dataset(x, y, names, mean=half, std=half), [Parts(p, p[:0], p) for p in parts])


@pytest.mark.parametrize(
    ("method", "classes", "c", "down", "up", "kilobytes"),
    [
        (FedGMH(), 10, 2, 2 * L10, 2 * (K + 1), (40.08, 4.01)),
        (FedGMH(**FedGMH.presets["o"]), 10, 2, L10, 2 * (K + 1), (20.04, 4.01)),
        (FedGH(), 10, 2, L10, 2 * (K + 1), (20.04, 4.01)),
        (FedAH(), 10, 2, F + L10, F + L10, (3431.79, 3431.79)),
        (FedAFK(), 10, 2, F, F, (3411.75, 3411.75)),
        (FedAFK(global_head=True), 10, 2, F + L10, F + L10, (3431.79, 3431.79)),
        (FedFTHA(head_epochs=1), 10, 2, F, F + L10, (3411.75, 3431.79)),
        (FedFTHA(head_epochs=1, head_agg="owner_mean"), 10, 2, F, F + L10 + 10 / 4, (3411.75, 3431.80)),
        (FedFTHA(head_epochs=1, upload_heads=False), 10, 2, F, F, (3411.75, 3411.75)),
        (FedGMH(), 100, 5, 5 * L100, 5 * (K + 1), (1001.95, 10.02)),
    ],
    ids=lambda value: repr(value) if hasattr(value, "travels") else "",
)
def test_bytes(method: Any, classes: int, c: int, down: int, up: float, kilobytes: tuple[float, float]) -> None:
    """To the byte; the numbers that the run reports are those of the messages that went through the executor."""
    data = images([list(range(c)), list(range(1, c + 1))], classes)
    model = CNN().build(data.task)
    plan = toy_plan(method, models=[model], data=data, rounds=1, train=Train(batch=c, lr=0.01), moments=("post",))
    executor = Listening(plan)
    ended = play(plan, executor).ended[0]
    lines = [(line["bytes_down"], line["bytes_up"]) for line in ended.clients]
    assert lines == [(4 * down, 4 * up)] * 2
    assert (ended.row["bytes_down"], ended.row["bytes_up"]) == (8 * down, 8 * up)
    assert tuple(round(4 * scalars / 1024, 2) for scalars in (down, up)) == kilobytes
    for training in executor.trainings:  # as bytes on a wire they are a header of names longer, and nothing else
        for record, scalars in ((training.job.down, down), (training.answer.up, up)):
            wire = encode(record)
            assert len(wire) == 4 * scalars + 8 + int.from_bytes(wire[:8], "little")


@pytest.mark.parametrize("method", [FedGH(), FedGMH(), LGFedAvg()], ids=lambda m: type(m).__name__)
def test_ten_clients_with_five_networks(method: Any) -> None:
    """FedGH's CNN-1 to CNN-5, client k with CNN-(k mod 5 + 1): bodies keep their own shapes, one head fits them all."""
    data = images([[k, (k + 1) % 10] for k in range(10)], 10, size=16)
    models = [FedGHCNN(variant).build(data.task) for variant in (1, 2, 3, 4, 5)]
    plan = toy_plan(method, models=models, data=data, rounds=2, train=Train(batch=2, lr=0.01), moments=("pre", "post"))
    ended = play(plan).ended[-1]
    shapes = [{k: tuple(t.shape) for k, t in ended.states[c].me.phi.items()} for c in range(10)]
    for c in range(10):
        trained, initial = ended.states[c].me.phi, models[c % 5].params("body")
        assert shapes[c] == {k: tuple(t.shape) for k, t in initial.items()}
        assert any(not torch.equal(t, initial[k]) for k, t in trained.items())
    assert len({tuple(s.items()) for s in shapes}) == 5
    assert sum("pre" in line and "post" in line for line in ended.clients) == 10
