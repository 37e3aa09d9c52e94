"""Training that protects single examples: its steps by hand, its noise, its cost, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import headwise as hw
from headwise.app.launch import data_folder
from headwise.app.prepare import prepare
from headwise.contract.averaging import Shared
from headwise.contract.benches import Local
from headwise.data.federated import Clients
from headwise.engine.client.client_bench import ClientBench
from headwise.engine.client.jobs import Job, handle
from headwise.engine.mechanism import Releases
from headwise.engine.plan import Plan
from headwise.errors import AccountingError, ClientError, ConfigError
from headwise.methods.fedavg import FedAvg
from headwise.methods.fedper import FedPer
from headwise.models.base import Task
from headwise.models.cnn import CNN
from headwise.models.fasttext import FastText
from headwise.models.lenet5 import LeNet5
from headwise.models.mlp import MLP
from headwise.models.split import SplitModel
from headwise.params import Params
from headwise.privacy.accountant import account, compose
from headwise.privacy.dp_sgd import DPSGD, REFUSES
from headwise.privacy.gaussian import poisson_sample
from headwise.privacy.mechanisms import rehearse
from headwise.records import Nothing, same
from headwise.settings.options import Train
from headwise.testing.toy import network, toy_plan

QUIET = DPSGD(0.5, 1e-9, source="seed")
ALL_AT_ONCE = Train(batch=50, lr=0.1)
"""a batch holds every sample of every client: there is nothing to draw"""


def trained(plan: Plan, client: int = 0) -> tuple[Params, Params]:
    """What the client was sent, and what it sends."""
    down = Shared(plan.models[0].params())
    answer, _ = handle(plan, Job("fit", client, 1, down), None)
    assert isinstance(answer.up, Shared)
    return down.w, answer.up.w


def step_by_hand(m: SplitModel, x: Tensor, y: Tensor, clip: float, lr: float) -> Params:
    """Abadi et al., Algorithm 1, without noise: w - lr / n * sum_i g_i / max(1, |g_i| / clip)."""
    w = Params(dict(m.named_parameters()))
    total = w.zeros()
    for i in range(len(y)):
        slopes = torch.autograd.grad(cross_entropy(m(x[[i]]), y[[i]]), list(w.values()))
        g = Params(dict(zip(w, slopes, strict=True)))
        total = total + g / max(1.0, float(g.sq_norm().sqrt()) / clip)
    return (w - (lr / len(y)) * total).map(Tensor.detach)


def close(a: Params, b: Params) -> bool:
    return a.keys() == b.keys() and all(torch.allclose(t, b[k], atol=1e-5) for k, t in a.items())


@pytest.mark.parametrize("clip", [0.05, 0.5, 100.0])
def test_a_step_is_the_mean_of_clipped_gradients(clip: float) -> None:
    plan = replace(toy_plan(FedAvg(), train=ALL_AT_ONCE), privacy=replace(QUIET, clip=clip))
    data = plan.data.client(0).train
    _, sent = trained(plan)
    assert close(sent, step_by_hand(plan.models[0], data.x, data.y, clip, lr=0.1))


def test_terms_are_added_to_private_gradients() -> None:
    """Neither clipped nor noised: they know nothing of the samples but what private training told."""
    plan = replace(toy_plan(FedAvg(), train=ALL_AT_ONCE), privacy=QUIET)
    local = ClientBench(plan, 0, 1, purpose="fit", kept=Params(), trained=0)
    m = local.init()
    w = m.params()
    anchor = w.map(lambda t: t + 3.0)
    shift = w.map(torch.ones_like)
    data = plan.data.client(0).train
    by_hand = step_by_hand(m, data.x, data.y, 0.5, lr=0.1) - 0.1 * (7.0 * (w - anchor) + shift)
    plan.privacy.bench(plan, local, "fit").sgd(m, pull=(7.0, anchor), shift=shift)
    assert close(m.params(), by_hand)


@pytest.mark.parametrize(
    ("family", "shape", "vocabulary"),
    [(MLP(), (8,), 0), (CNN(), (1, 28, 28), 0), (LeNet5(), (3, 32, 32), 0), (FastText(), (12,), 20)],
    ids=lambda v: type(v).__name__,
)
def test_networks_without_batchnorm_can_be_trained(family: Any, shape: tuple[int, ...], vocabulary: int) -> None:
    task, rng = Task(shape, 3, vocabulary), torch.Generator().manual_seed(0)
    size = (5, *shape)
    x = torch.randint(1, vocabulary, size, generator=rng) if vocabulary else torch.randn(size, generator=rng)
    data = Clients(task, x, torch.tensor([0, 1, 2, 1, 0]), np.array([[5, 5, 5]]))
    model = family.build(task).eval()
    plan = replace(toy_plan(FedAvg(), models=[model], train=ALL_AT_ONCE), data=data, privacy=QUIET)
    _, sent = trained(plan)
    assert close(sent, step_by_hand(model, data.x, data.y, 0.5, lr=0.1))


def test_noise_of_training_has_the_stated_variance() -> None:
    """One step on 13 samples with almost no gradient: what is left is noise of deviation noise x clip / 13.

    Bounds of six standard errors: chance alone fails it less than once in a hundred million times.
    """
    plan = replace(
        toy_plan(FedAvg(), models=[network(width=3000)], train=ALL_AT_ONCE), privacy=replace(QUIET, noise=1e6)
    )
    plan = replace(plan, privacy=replace(plan.privacy, clip=1e-6, source="system"))
    before, after = trained(plan)
    noise = torch.cat([t.flatten() for t in (after - before).values()]) / 0.1
    s = 1e6 * 1e-6 / 13
    assert noise.numel() > 20_000
    assert noise.std().item() == pytest.approx(s, abs=6 * s / math.sqrt(2 * noise.numel()))
    assert noise.mean().item() == pytest.approx(0, abs=6 * s / math.sqrt(noise.numel()))


@pytest.mark.parametrize("rng", [None, torch.Generator().manual_seed(3)], ids=["system", "seed"])
def test_examples_are_drawn_each_by_itself(rng: torch.Generator | None) -> None:
    """Poisson sampling: sizes are binomial, and every example has the same chance.

    Bounds of seven standard errors: chance alone fails it less than once in ten million times.
    """
    n, rate, times = 200, 0.1, 500
    draws = [poisson_sample(n, rate, rng) for _ in range(times)]
    sizes = torch.tensor([float(len(d)) for d in draws])
    assert sizes.mean().item() == pytest.approx(n * rate, abs=7 * math.sqrt(n * rate * 0.9 / times))
    assert sizes.var().item() == pytest.approx(n * rate * 0.9, rel=7 * math.sqrt(2 / times))
    counts = torch.bincount(torch.cat(draws), minlength=n)
    assert (counts - times * rate).abs().max() < 7 * math.sqrt(times * rate * 0.9)
    assert poisson_sample(n, 1.0, rng).tolist() == list(range(n))


def test_randomness_is_secret_unless_a_test_asks() -> None:
    loud = replace(QUIET, noise=1.0)
    plans = [replace(toy_plan(FedAvg()), privacy=replace(loud, source=s)) for s in ("system", "system", "seed", "seed")]
    sent = [Shared(trained(plan)[1]) for plan in plans]
    assert not same(sent[0], sent[1])
    assert same(sent[2], sent[3])


def test_steps_without_any_example_are_noise_alone() -> None:
    """With one of 13 samples per step on average, about a third of the steps have none."""
    plan = replace(toy_plan(FedAvg(), train=Train(batch=1, lr=0.1, epochs=5)), privacy=replace(QUIET, noise=1.0))
    before, after = trained(plan)
    assert all(t.isfinite().all() for t in after.values())
    assert not close(before, after)


def test_an_example_that_is_not_finite_moves_nothing() -> None:
    plan = replace(toy_plan(FedAvg(), train=ALL_AT_ONCE), privacy=QUIET)
    data = plan.data.client(0).train
    good = torch.arange(len(data)) != 2
    expected = step_by_hand(plan.models[0], data.x[good], data.y[good], 0.5, lr=0.1 * 12 / 13)
    data.x[2] = math.nan
    assert close(trained(plan)[1], expected)


def test_a_head_alone_is_trained_on_features() -> None:
    """Everything else stays as it was."""
    plan = replace(toy_plan(FedPer(), train=ALL_AT_ONCE), privacy=QUIET)
    bench = QUIET.bench(plan, ClientBench(plan, 0, 1, purpose="fit", kept=Params(), trained=0), "fit")
    m = bench.init()
    before = m.state()
    assert bench.sgd(m, only=m.head, epochs=3) == 3
    after = m.state()
    changed = [k for k in before if not torch.equal(before[k], after[k])]
    assert changed == ["head.weight", "head.bias"]
    assert all(p.requires_grad for p in m.parameters())


class Newer(ClientBench):
    """A bench with primitives that no mechanism knows."""

    secret = 7

    def peek(self) -> Tensor:
        return self._train.x


@pytest.mark.parametrize("task", ["fit", "idle", "init"])
@pytest.mark.parametrize("name", ["peek", "secret", "kept", "samples", *REFUSES])
def test_what_is_not_allowed_is_refused(name: str, task: str) -> None:
    """There is a list of what is allowed; everything else is refused."""
    plan = replace(toy_plan(FedAvg()), privacy=QUIET)
    bench = QUIET.bench(plan, Newer(plan, 0, 1, purpose=task, kept=Params(), trained=0), task)
    with pytest.raises(AccountingError, match="only plain training protects single examples"):
        getattr(bench, name)
    with pytest.raises(AttributeError, match="no 'drawn'"):
        getattr(bench, "drawn")  # noqa: B009
    assert (bench.client, bench.n, bench.lr) == (0, 13, plan.experiment.train.lr)


def test_more_epochs_than_were_counted_are_refused() -> None:
    plan = replace(toy_plan(FedAvg(), train=Train(batch=4, epochs=3)), privacy=QUIET)
    trained(replace(plan, epochs_accounted=3))
    with pytest.raises(ClientError) as error:
        trained(replace(plan, epochs_accounted=2))
    assert isinstance(error.value.__cause__, AccountingError)


@dataclass(frozen=True)
class TrainsBefore(FedAvg):
    """FedAvg whose clients train before anything is accounted for."""

    def client_init(self, local: Local) -> Nothing:
        local.sgd(local.init())
        return Nothing()


def test_training_that_nobody_counts_is_refused() -> None:
    with pytest.raises(AccountingError):
        rehearse(replace(toy_plan(TrainsBefore()), privacy=QUIET))


def spent(**settings: Any) -> dict[str, Any]:
    privacy = {"clip": 1.0, "level": "example", "noise": 1.5, "delta": 1e-4}
    plan = prepare(hw.Experiment(clients=4, privacy=privacy, **settings), data_folder(None)).plan
    return account(plan) | {"sizes": [plan.data.sizes(c)[0] for c in range(4)]}


@pytest.mark.parametrize(("method", "epochs"), [("fedavg", 1), ("fedrep:head_epochs=4", 5), ("fedftha", 6)])
def test_every_client_has_its_own_epsilon(method: str, epochs: int) -> None:
    """Counts the steps that training takes, at each client's rate; the run's epsilon is the largest."""
    found = spent(method=method, rounds=3)
    assert len(set(found["sizes"])) > 1
    by_size = [compose((Releases(1.5, 10 / n, 3 * epochs * math.ceil(n / 10)),), 1e-4) for n in found["sizes"]]
    assert found["clients"] == pytest.approx(by_size)
    assert found["epsilon"] == max(by_size)
    assert found["unit"] == "example"


def test_small_clients_are_never_drawn_from() -> None:
    """With fewer samples than a batch, all are in every step; with `drop_last`, there are no steps."""
    found = spent(train={"batch": 10_000}, rounds=2)
    assert found["clients"] == pytest.approx([compose((Releases(1.5, 1.0, 2),), 1e-4)] * 4)
    assert spent(train={"batch": 10_000, "drop_last": True}, rounds=2)["epsilon"] == 0


@pytest.mark.parametrize(
    ("method", "model", "says"),
    [
        ("fedgh", "mlp", "its clients need class means"),
        ("fedgmh", "mlp", "its clients need the number of samples of each class"),
        ("fedala", "mlp", "its clients need a part of the samples"),
        ("apfl", "mlp", "it trains in a way of its own"),
        ("moon", "mlp", "its clients need outputs of a network"),
        ("fedfomo", "mlp", "its clients need samples to validate on"),
        ("fedavg", "own.py", "layers that look at several examples at once, such as BatchNorm"),
    ],
)
def test_other_uses_of_data_are_refused(method: str, model: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(WITH_NORM)
    model = str(tmp_path / model) if model.endswith(".py") else model
    made = hw.Experiment(method=method, model=model, clients=4, privacy={"clip": 1.0, "level": "example"})
    with pytest.raises(ConfigError, match=rf"privacy.level 'example', but {method} can't be accounted for: .*{says}"):
        hw.run(made, tmp_path / "run")
    assert not (tmp_path / "run").exists()


WITH_NORM = '''
from dataclasses import dataclass
import math
from torch import nn
from headwise.models.base import Model, Task
from headwise.models.split import SplitModel

@dataclass(frozen=True)
class Own(Model):
    """A network with BatchNorm."""

    def build(self, task: Task) -> SplitModel:
        body = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(task.shape), 4), nn.BatchNorm1d(4), nn.ReLU())
        return SplitModel(body, nn.Linear(4, task.classes))
'''


@pytest.mark.parametrize("method", ["fedper", "fedavg-ft", "mr-mtl"])
def test_a_run_learns_and_says_what_it_spent(method: str, tmp_path: Path) -> None:
    made = hw.Experiment(
        method=method,
        partition="iid",
        clients=4,
        rounds=3,
        train={"batch": 50, "lr": 0.5, "epochs": 3},
        privacy={"clip": 1.0, "noise": 0.6, "level": "example", "source": "seed"},
    )
    run = hw.run(made, tmp_path / "run")
    assert run.accuracy() > 0.5, "guessing gives 0.1"
    found = json.loads((run.path / "manifest.json").read_text())["privacy"]
    assert found["epsilon"] == max(found["clients"]) == run.summary()["privacy"]["epsilon"]
