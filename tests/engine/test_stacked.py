"""Stacked training gives the same as training one by one, whichever clients are in the stack."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import pytest
import torch
from bench_of_tests import federation, prepare
from torch import Tensor, nn

from headwise.engine.client.client_bench import ClientBench
from headwise.engine.executors.serial import Serial
from headwise.engine.host.clock import Clock
from headwise.engine.kernels.layers import chain_of
from headwise.engine.kernels.stacked import Phase
from headwise.engine.kernels.together import side_by_side
from headwise.engine.plan import Plan
from headwise.methods.fedavg import FedAvg
from headwise.models.mlp import MLP
from headwise.models.split import SplitModel
from headwise.params import Params
from headwise.settings import catalog
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
    """The networks of these clients after two epochs, trained side by side."""

    def one(client: int) -> tuple[int, dict[str, Tensor], int]:
        local = bench(plan, client)
        m = local.init()
        steps = local.sgd(m, only=getattr(m, part) if part else None, epochs=2)
        return steps, m.state_dict(), local.samples[0]

    found = side_by_side([partial(one, c) for c in clients], Clock())
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
def test_it_is_training_one_by_one(part: str, train: dict[str, Any]) -> None:
    everybody = list(range(len(SIZES)))
    stacked, single = (trained(plan(s, **train), part, everybody) for s in KERNELS)
    moved = 0.0
    for c in everybody:
        for k, t in single[c].items():
            torch.testing.assert_close(stacked[c][k], t, rtol=0, atol=1e-6)
            moved = max(moved, float((t - plan().models[0].state_dict()[k]).abs().max()))
    assert moved > 0.01


@pytest.mark.parametrize("part", ["", "head", "body"])
def test_nobody_depends_on_the_company(part: str) -> None:
    """To the bit: engines form different groups, and must agree."""
    everybody = list(range(len(SIZES)))
    together = trained(plan(), part, everybody)
    for company in ([4], [0, 4], [3, 4, 1], everybody[::-1]):
        for c, state in trained(plan(), part, company).items():
            assert all(torch.equal(t, together[c][k]) for k, t in state.items())


@pytest.mark.parametrize("method", catalog.names("method"))
def test_every_method_comes_to_the_same_without_it(method: str) -> None:
    """In a round of all clients, server, states and scores agree up to rounding."""
    made = catalog.find("method", method)()
    with_it, without = (play(toy_plan(made, rounds=1, kernels=s)).trace() for s in KERNELS)
    for a, b in zip(with_it.parsed(), without.parsed(), strict=True):
        for moment in ("pre", "post"):
            assert a[moment]["loss"] == pytest.approx(b[moment]["loss"], rel=1e-4)
            assert a[moment]["accuracy"] == pytest.approx(b[moment]["accuracy"], abs=0.1)


def test_a_linear_network_without_bias_is_stacked_too() -> None:
    model = SplitModel(nn.Flatten(), nn.Linear(4, 3, bias=False))
    assert chain_of(model, [model]) is not None
    stacked, single = (trained(plan(s, model=model), "", [1, 3]) for s in KERNELS)
    for c in (1, 3):
        torch.testing.assert_close(stacked[c], single[c], rtol=0, atol=1e-6)


def test_a_part_without_weights_takes_no_steps() -> None:
    local = bench(plan(model=SplitModel(nn.Flatten(), nn.Linear(4, 3))), 3)
    m = local.init()
    assert local.sgd(m, only=m.body) == 0


class Odd(nn.Linear):
    """May do anything."""


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(2, 2), nn.Flatten(), nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(2, 2), nn.ReLU()),
        nn.Sequential(nn.ReLU(), nn.Linear(2, 2)),
        nn.Sequential(Odd(2, 2)),
        nn.Sequential(nn.Flatten(0), nn.Linear(2, 2)),
        nn.Conv2d(1, 1, 1),
        nn.Sequential(*[nn.Linear(2, 2)] * 2),
        nn.Flatten(),
    ],
    ids=lambda m: type(m).__name__ if not isinstance(m, nn.Sequential) else "-".join(type(x).__name__ for x in m),
)
def test_other_networks_are_not_stacked(model: nn.Module) -> None:
    assert chain_of(model, [model]) is None


def test_a_network_with_a_hook_is_not_stacked() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    assert chain_of(model, [model]) is not None
    model[0].register_forward_hook(lambda *_: None)
    assert chain_of(model, [model]) is None


def test_only_what_agrees_is_stacked() -> None:
    small, large = nn.Linear(2, 2), nn.Linear(2, 3)
    x, y, batches = torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64), torch.zeros(1, 1, dtype=torch.int64)

    def key(linear: nn.Linear, **changes: Any) -> object:
        chain = chain_of(linear, [linear])
        assert chain
        return dataclasses.replace(Phase(chain, x, y, batches, 0.1, 0.0, 0.0), **changes).key

    assert key(small) == key(nn.Linear(2, 2))
    others = [key(large), key(small, lr=0.2), key(small, momentum=0.1), key(small, weight_decay=0.1)]
    others += [key(small, batches=batches.expand(1, 2)), key(nn.Linear(2, 2, bias=False))]
    assert key(small) not in others


def test_a_client_that_diverges_takes_nobody_with_it() -> None:
    """Its slices become NaN, the others' do not."""
    loud = plan(lr=0.1)
    start = loud.data.ends[2][2]
    loud.data.x[start : loud.data.ends[3][0]] = float("inf")
    found = trained(loud, "", [2, 3, 4])
    finite = {c: all(bool(t.isfinite().all()) for t in state.values()) for c, state in found.items()}
    assert finite == {2: True, 3: False, 4: True}


def test_memory_bounds_how_many_are_handled_at_once() -> None:
    from headwise.engine.executors.base import MEMORY, TOGETHER, side_by_side_limit

    small = plan()
    assert side_by_side_limit(small) == TOGETHER
    huge = nn.Linear(1, MEMORY // 4 // 3, bias=False)
    assert side_by_side_limit(dataclasses.replace(small, models=(SplitModel(nn.Flatten(), huge),))) == 3
    assert Serial(small, together=2)._together == 2
