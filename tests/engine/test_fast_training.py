"""Fast kernels learn what autograd learns, at every client by itself."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from bench_of_tests import federation, prepare
from torch import Tensor, nn

from headwise.app import registry
from headwise.engine.client.client_bench import ClientBench
from headwise.engine.client.jobs import Job
from headwise.engine.executors.base import MEMORY, MOST, balance
from headwise.engine.plan import Plan
from headwise.methods.fedavg import FedAvg
from headwise.models.mlp import MLP
from headwise.models.split import SplitModel
from headwise.params import Params
from headwise.records import Nothing
from headwise.settings.names import list_names
from headwise.settings.options import Engine, Kernels, Train
from headwise.testing.toy import play, toy_plan

KERNELS: tuple[Kernels, Kernels] = ("fast", "plain")
SIZES = (1, 3, 4, 9, 14)
"""training samples of the clients: less than a batch of four, exactly one batch, and several with a remainder"""


def plan(kernels: Kernels = "fast", *, model: SplitModel | None = None, **train: Any) -> Plan:
    data = federation([([k % 3 for k in range(n)], [], [0]) for n in SIZES])
    torch.manual_seed(3)
    models = [model or MLP(hidden=5, layers=2).build(data.task)]
    return prepare(
        FedAvg(), data, models, engine=Engine(kernels=kernels), train=Train(**{"batch": 4, "lr": 0.3, **train})
    )


def bench(plan: Plan, client: int) -> ClientBench:
    return ClientBench(plan, client, 1, purpose="fit", kept=Params(), trained=0)


def trained(plan: Plan, part: str, clients: list[int]) -> dict[int, dict[str, Tensor]]:
    """The networks of these clients after two epochs."""

    def one(client: int) -> tuple[int, dict[str, Tensor], int]:
        local = bench(plan, client)
        m = local.init()
        steps = local.sgd(m, only=getattr(m, part) if part else None, epochs=2)
        return steps, m.state_dict(), local.samples[0]

    found = [one(c) for c in clients]
    for c, (steps, _, samples) in zip(clients, found, strict=True):
        full, rest = divmod(SIZES[c], plan.experiment.train.batch)
        drop = plan.experiment.train.drop_last
        assert steps == 2 * (full + (rest > 0 and not drop))
        assert samples == 2 * (SIZES[c] - (rest if drop else 0))
    return {c: state for c, (_, state, _) in zip(clients, found, strict=True)}


@pytest.mark.parametrize("part", ["", "head", "body"])
@pytest.mark.parametrize(
    "train",
    [{}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"momentum": 0.5, "weight_decay": 0.1}, {"drop_last": True}],
    ids=str,
)
def test_fast_training_is_plain_training(part: str, train: dict[str, Any]) -> None:
    everybody = list(range(len(SIZES)))
    fast, plain = (trained(plan(s, **train), part, everybody) for s in KERNELS)
    moved = 0.0
    for c in everybody:
        for k, t in plain[c].items():
            torch.testing.assert_close(fast[c][k], t, rtol=0, atol=1e-6)
            moved = max(moved, float((t - plan().models[0].state_dict()[k]).abs().max()))
    assert moved > 0.01


@pytest.mark.parametrize("part", ["", "head", "body"])
def test_nobody_depends_on_the_company(part: str) -> None:
    """To the bit: engines handle clients in different orders, and must agree."""
    everybody = list(range(len(SIZES)))
    together = trained(plan(), part, everybody)
    for company in ([4], [0, 4], [3, 4, 1], everybody[::-1]):
        for c, state in trained(plan(), part, company).items():
            assert all(torch.equal(t, together[c][k]) for k, t in state.items())


@pytest.mark.parametrize("method", list_names("method"))
def test_every_method_comes_to_the_same_on_plain_kernels(method: str) -> None:
    """In a round of all clients, server, states and scores agree up to rounding."""
    made = registry.find("method", method)()
    with_it, without = (play(toy_plan(made, rounds=1, kernels=s)).trace() for s in KERNELS)
    for a, b in zip(with_it.parse(), without.parse(), strict=True):
        for moment in ("pre", "post"):
            assert a[moment]["loss"] == pytest.approx(b[moment]["loss"], rel=1e-4)
            assert a[moment]["accuracy"] == pytest.approx(b[moment]["accuracy"], abs=0.1)


def test_a_linear_network_without_bias_learns_the_same() -> None:
    model = SplitModel(nn.Flatten(), nn.Linear(4, 3, bias=False))
    fast, plain = (trained(plan(s, model=model), "", [1, 3]) for s in KERNELS)
    for c in (1, 3):
        torch.testing.assert_close(fast[c], plain[c], rtol=0, atol=1e-6)


def test_a_part_without_weights_takes_no_steps() -> None:
    local = bench(plan(model=SplitModel(nn.Flatten(), nn.Linear(4, 3))), 3)
    m = local.init()
    assert local.sgd(m, only=m.body) == 0


def test_a_client_that_diverges_takes_nobody_with_it() -> None:
    """Its weights become NaN, the others' do not."""
    loud = plan(lr=0.1)
    start = loud.data.ends[2][2]
    loud.data.x[start : loud.data.ends[3][0]] = float("inf")
    found = trained(loud, "", [2, 3, 4])
    finite = {c: all(bool(t.isfinite().all()) for t in state.values()) for c, state in found.items()}
    assert finite == {2: True, 3: False, 4: True}


def test_memory_bounds_the_models_of_a_group() -> None:
    """The answers of a group come all at once."""
    jobs = [Job("fit", k % len(SIZES), 1, Nothing()) for k in range(9 * MOST)]
    small = plan()
    assert len(balance(jobs, small, 2)) == 9
    huge = nn.Linear(1, MEMORY // 4 // 3, bias=False)
    large = dataclasses.replace(small, models=(SplitModel(nn.Flatten(), huge),))
    assert len(balance(jobs, large, 2)) == 3 * MOST
