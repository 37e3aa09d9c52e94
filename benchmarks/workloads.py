"""The workloads of the speed benchmarks: random samples, since only their number and shape matter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from headwise.app import registry
from headwise.data.federated import Clients
from headwise.engine.plan import Plan
from headwise.models.base import Task
from headwise.models.split import channels_last, lay_out
from headwise.settings.choices import Choice
from headwise.settings.experiment import Experiment
from headwise.settings.options import Evaluate, Sampling, Train


@dataclass(frozen=True)
class Workload:
    """Clients of one size and one network."""

    what: str
    model: str
    shape: tuple[int, ...]
    clients: int
    samples: int
    """training samples of each client"""
    batch: int
    epochs: int = 1
    sampled: int = 0
    """clients in a round; 0: all"""
    test: int = 0
    """test samples of each client"""


WORKLOADS = {
    "W1": Workload("CNN, 3x32x32, 20 clients x 300, batch 10", "cnn", (3, 32, 32), 20, 300, 10),
    "W2": Workload("CNN, 1x28x28, 20 clients x 300, batch 10", "cnn", (1, 28, 28), 20, 300, 10),
    "W3": Workload("CNN, 3x32x32, 20 of 100 clients x 450, batch 100, E 2", "cnn", (3, 32, 32), 100, 450, 100, 2, 20),
    "W4": Workload("ResNet-18, 3x32x32, 2 clients x 50, batch 10", "resnet18", (3, 32, 32), 2, 50, 10),
    "W5": Workload("MLP 64-64-10, 100 clients x 300, batch 10", "mlp", (64,), 100, 300, 10),
}  # fmt: skip


def plan_of(load: Workload, method: str = "fedavg", *, rounds: int = 10**6, **changes: Any) -> Plan:
    """A run of this workload without any evaluation."""
    torch.manual_seed(0)
    task = Task(load.shape, 10)
    model = lay_out(registry.make("model", Choice.parse(load.model, "model")).build(task).eval())
    each = load.samples + load.test
    x = torch.randn(load.clients * each, *load.shape)
    y = torch.randint(10, (load.clients * each,))
    if channels_last(model):
        x = x.contiguous(memory_format=torch.channels_last)
    ends = each * np.arange(load.clients)[:, None] + np.array([load.samples, load.samples, each])
    usual: dict[str, Any] = {
        "train": Train(batch=load.batch, epochs=load.epochs, lr=0.01),
        "sampling": Sampling((load.sampled or load.clients) / load.clients),
        "evaluate": Evaluate(every=10**6, moments=()),
    }
    experiment = Experiment(rounds=rounds, **{**usual, **changes})
    return Plan(experiment, registry.find("method", method)(), (model,), Clients(task, x, y, ends))


def rebuilt(load: Workload, data: Clients) -> Plan:
    """The plan in a worker process, which can import this file, but not a script."""
    return replace(plan_of(load), data=data)
