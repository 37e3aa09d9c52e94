"""Convolutional chains learn the same with and without autograd."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from headwise.engine.kernels.chain import Chain
from headwise.engine.kernels.descent import Descent
from headwise.models.base import Task
from headwise.models.cnn import CNN
from headwise.models.split import SplitModel, laid_out

OPTIONS: dict[str, Any] = {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "clip": None}


def network(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(2, 4, 3), *layers, nn.Flatten(), nn.Linear(4 * 4, 3)).double()


NETWORKS = {
    "pool before ReLU": network(nn.MaxPool2d(2), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Identity()),
    "ReLU in place": network(nn.ReLU(inplace=True), nn.MaxPool2d(4, stride=4, padding=1), nn.ReLU()),
    "strides, groups, padding": network(nn.Conv2d(4, 4, 3, 2, 1, groups=2, bias=False), nn.ReLU(), nn.Conv2d(4, 4, 2)),
    "dilation, ceiling": network(nn.Conv2d(4, 4, 2, dilation=2), nn.MaxPool2d(3, 2, ceil_mode=True)),
    "deeper head": nn.Sequential(
        nn.ReLU(), nn.Conv2d(2, 1, 5), nn.Flatten(), nn.Linear(16, 5, bias=False), nn.ReLU(), nn.Linear(5, 3)
    ).double(),
}


def batches() -> list[tuple[Tensor, Tensor]]:
    rng = torch.Generator().manual_seed(2)
    sizes = (5, 5, 1)
    return [
        (torch.randn(n, 2, 8, 8, generator=rng, dtype=torch.float64), torch.randint(3, (n,), generator=rng))
        for n in sizes
    ]


def learned(model: nn.Module, parts: list[nn.Module], *, chained: bool, **options: Any) -> dict[str, Tensor]:
    """The weights after three steps."""
    descent = Descent([p for part in parts for p in part.parameters()], **{**OPTIONS, **options})
    chain = Chain.of(model, descent)
    assert chain is not None
    for x, y in batches():
        if chained:
            chain.step(x.clone(), y)
        else:
            descent.step(cross_entropy(model(x.clone()), y))
    return model.state_dict()


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"momentum": 0.5, "weight_decay": 0.1}], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_chain_learns_what_autograd_learns(name: str, options: dict[str, Any]) -> None:
    torch.manual_seed(1)
    start = NETWORKS[name]
    a, b = copy.deepcopy(start), copy.deepcopy(start)
    mine, theirs = learned(a, [a], chained=True, **options), learned(b, [b], chained=False, **options)
    for key, t in theirs.items():
        torch.testing.assert_close(mine[key], t, rtol=0, atol=1e-12)
        assert not torch.equal(t, start.state_dict()[key])


@pytest.mark.parametrize("part", ["body", "head"])
def test_what_is_frozen_stays(part: str) -> None:
    start = SplitModel(NETWORKS["deeper head"][:-1], NETWORKS["deeper head"][-1])
    a, b = copy.deepcopy(start), copy.deepcopy(start)
    mine, theirs = (learned(m, [getattr(m, part)], chained=c) for m, c in ((a, True), (b, False)))
    for key, t in theirs.items():
        torch.testing.assert_close(mine[key], t, rtol=0, atol=1e-12)
        assert torch.equal(mine[key], start.state_dict()[key]) == (not key.startswith(part))


def test_the_network_of_the_papers_is_a_chain_and_keeps_its_layout() -> None:
    model = laid_out(CNN().build(Task((3, 32, 32), 10)))
    strides = {k: t.stride() for k, t in model.state_dict().items()}
    chain = Chain.of(model, Descent(list(model.parameters()), **OPTIONS))
    assert chain is not None
    chain.step(torch.randn(4, 3, 32, 32).contiguous(memory_format=torch.channels_last), torch.arange(4))
    assert {k: t.stride() for k, t in model.state_dict().items()} == strides


def listened() -> nn.Sequential:
    model = network()
    model[0].register_full_backward_hook(lambda *_: None)
    return model


def shared() -> nn.Sequential:
    layer = nn.Conv2d(2, 2, 3)
    return nn.Sequential(layer, layer, nn.Flatten(), nn.Linear(2, 2))


@pytest.mark.parametrize(
    "model",
    [
        network(nn.Dropout()),
        network(nn.BatchNorm2d(4)),
        network(nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular")),
        network(nn.Conv2d(4, 4, 3, padding="same")),
        network(nn.AvgPool2d(2)),
        network(nn.Linear(6, 6)),
        nn.Sequential(nn.Flatten(), nn.Linear(4, 2)),
        nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten(2), nn.Linear(4, 2)),
        nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten()),
        listened(),
        shared(),
    ],
    ids=lambda m: "-".join(type(x).__name__ for x in m),
)
def test_other_networks_are_left_to_autograd(model: nn.Sequential) -> None:
    assert Chain.of(model, Descent(list(model.parameters()), **OPTIONS)) is None


def test_nothing_to_learn_is_no_chain() -> None:
    assert Chain.of(network(), Descent([], **OPTIONS)) is None
