"""Every kernel learns by the task's loss, and nobody's result depends on the company."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from headwise.data.dataset import Dataset
from headwise.data.federated import FederatedData
from headwise.data.splits import Parts
from headwise.engine.client.client_bench import ClientBench
from headwise.engine.kernels.native.library import LIMIT, find
from headwise.engine.kernels.optimizer import Rates
from headwise.engine.kernels.training import choose
from headwise.engine.plan import Plan
from headwise.methods.fedavg import FedAvg
from headwise.models.base import Task
from headwise.models.cnn import CNN
from headwise.models.fcn import FCN
from headwise.models.mlp import MLP
from headwise.models.split import SplitModel
from headwise.params import Params
from headwise.settings.experiment import Experiment
from headwise.settings.options import Engine, Kernels, TaskName, Train
from headwise.tasks.registry import objective_of

SIZES = (1, 3, 9, 14)
OPTIONS = [
    ("classification", {"label_smoothing": 0.1}),
    ("classification", {"class_weights": "balanced"}),
    ("classification", {"class_weights": (1.0, 2.0, 0.5), "label_smoothing": 0.2}),
    ("multilabel", {}),
    ("multilabel", {"class_weights": "balanced", "label_smoothing": 0.1}),
    ("regression", {}),
    ("regression", {"momentum": 0.9, "weight_decay": 0.1}),
    ("regression", {"clip": 0.3}),
]
"""tasks with options of their training"""


def plan(task: TaskName, kernels: Kernels = "fast", image: bool = False, **train: Any) -> Plan:
    rng = np.random.default_rng(0)
    n = sum(SIZES)
    x = rng.standard_normal((n, 1, 16, 16) if image else (n, 4)).astype(np.float32)
    linear = x.reshape(n, -1) @ rng.standard_normal((x[0].size, 3))
    y = {"classification": linear.argmax(1), "multilabel": (linear > 0).astype(np.float32)}.get(task, 7 + 5 * linear)
    y = y.astype(np.float32) if task == "regression" else y
    blocks = np.split(np.arange(n), np.cumsum(SIZES)[:-1])
    data = FederatedData(Dataset(x, y, ("a", "b", "c"), task=task), [Parts(b, b[:0], b[:0]) for b in blocks])
    torch.manual_seed(3)
    model = CNN().build(data.task) if image else MLP(hidden=5, layers=2).build(data.task)
    settings = Train(**{"batch": 4, "lr": 0.1, **train})
    experiment = Experiment(train=settings, engine=Engine(kernels=kernels))
    return Plan(experiment, FedAvg(), (model.eval(),), data.clients())


def train_clients(plan: Plan, clients: list[int], epochs: int = 2) -> list[dict[str, Tensor]]:
    """The networks of these clients, trained in this order."""

    def one(client: int) -> dict[str, Tensor]:
        local = ClientBench(plan, client, 1, purpose="fit", kept=Params(), trained=0)
        m = local.init()
        local.sgd(m, epochs=epochs)
        return m.state_dict()

    return [one(c) for c in clients]


@pytest.fixture(params=["", "off"], ids=["native", "torch"])
def limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the native kernels, and without them, as where there is no compiler."""
    monkeypatch.setenv(LIMIT, request.param)


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize(("task", "train"), OPTIONS, ids=str)
def test_fast_training_is_plain_training(task: TaskName, train: dict[str, Any]) -> None:
    everybody = list(range(len(SIZES)))
    fast, plain = (train_clients(plan(task, kernels, **train), everybody) for kernels in ("fast", "plain"))
    start = plan(task).models[0].state_dict()
    for a, b in zip(fast, plain, strict=True):
        for k, t in b.items():
            torch.testing.assert_close(a[k], t, rtol=0, atol=2e-6)
    assert max(float((t - start[k]).abs().max()) for k, t in plain[-1].items()) > 0.01


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize(("task", "train"), OPTIONS, ids=str)
def test_nobody_depends_on_the_company(task: TaskName, train: dict[str, Any]) -> None:
    """To the bit: engines handle clients in different orders, and must agree."""
    together = train_clients(plan(task, **train), [0, 1, 2, 3])
    for company in ([3], [2, 0], [3, 1, 2]):
        for c, state in zip(company, train_clients(plan(task, **train), company), strict=True):
            assert all(torch.equal(t, together[c][k]) for k, t in state.items())


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("task", ["classification", "multilabel", "regression"])
def test_convolutions_learn_the_same_with_and_without_autograd(task: TaskName) -> None:
    train = {"class_weights": "balanced"} if task != "regression" else {}
    fast, plain = (train_clients(plan(task, kernels, image=True, **train), [2], 1)[0] for kernels in ("fast", "plain"))
    for k, t in plain.items():
        torch.testing.assert_close(fast[k], t, rtol=0, atol=2e-6)


def test_which_kernel_trains_what(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = Rates(0.1, 0.0, 0.0)
    dense = SplitModel(nn.Flatten(), nn.Linear(4, 3))

    def name(model: SplitModel, task: Task, **options: Any) -> str:
        return choose(model, [model], None, rates, models=[model], objective=objective_of(task, **options)).name

    table = Task((4,), 3)
    picture = Task((1, 16, 16), 3, kind="multilabel")
    for limit, native in (("", bool(find("").library)), ("off", False)):
        monkeypatch.setenv(LIMIT, limit)
        for kind in ("classification", "regression", "multilabel"):
            assert name(dense, replace(table, kind=kind)) == ("native" if native else "plain")
        assert name(dense, table, smoothing=0.1) == ("native" if native else "plain")
        assert name(CNN().build(picture), picture) == ("native" if native else "plain")
    pixels = replace(picture, kind="segmentation")
    assert name(FCN().build(pixels), pixels) == "plain"
    assert name(dense, replace(table, kind="segmentation")) == "plain"


def test_weights_of_a_client_come_from_its_own_training_samples() -> None:
    federation = plan("classification", class_weights="balanced")
    benches = [ClientBench(federation, c, 1, purpose="fit", kept=Params(), trained=0) for c in (2, 3)]
    weights = [vars(b.objective)["weights"] for b in benches]
    for bench, w in zip(benches, weights, strict=True):
        occurs = bench.class_counts > 0
        sums = (bench.class_counts * w)[occurs]
        torch.testing.assert_close(sums, sums[:1].expand_as(sums))
    assert not torch.equal(*weights)
