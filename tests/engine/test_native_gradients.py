"""The native kernels learn and say what torch does, whatever the shapes."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from native_chains import BUILDS, chains, feed_of, learned, some_feed, taught
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from headwise.engine.kernels.native.chain import predict
from headwise.engine.kernels.native.library import LIMIT
from headwise.engine.kernels.optimizer import Rates
from headwise.engine.kernels.training import NativeKernel
from headwise.models.base import Task
from headwise.models.cnn import CNN
from headwise.models.fedgh_cnn import FedGHCNN
from headwise.models.lenet5 import LeNet5
from headwise.models.mlp import MLP
from headwise.models.resnet18 import ResNet18
from headwise.models.split import SplitModel, lay_out

PLAIN, ALL = Rates(0.1, 0.0, 0.0), Rates(0.1, 0.9, 0.05)


def close(mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    for key, t in theirs.items():
        torch.testing.assert_close(mine[key].double(), t, rtol=1e-5, atol=1e-5)


@settings(max_examples=25)
@given(chains())
def test_any_chain_learns_and_says_what_torch_does(made: tuple[nn.Sequential, tuple[int, ...], int]) -> None:
    """And all builds the same to the bit."""
    network, shape, classes = made
    feed = some_feed(shape, classes)
    for rates in (PLAIN, ALL):
        found = [learned(network, [network], feed, rates, name) for name in BUILDS]
        theirs = taught(network, [network], feed, rates)
        for mine in found:
            close(mine, theirs)
            assert all(torch.equal(mine[k], t) for k, t in found[0].items())
    said = predict(network, x := feed.whole()[0])
    if BUILDS:
        assert said is not None
        torch.testing.assert_close(said.double(), copy.deepcopy(network).double()(x.double()), rtol=1e-5, atol=1e-5)


NETWORKS = {
    "cnn": (CNN(), (3, 32, 32)),
    "cnn of one channel": (CNN(), (1, 28, 28)),
    "lenet5": (LeNet5(), (3, 32, 32)),
    "fedgh": (FedGHCNN(5), (3, 32, 32)),
    "mlp": (MLP(30, 2), (5, 3, 7)),
}


@pytest.mark.parametrize("part", ["", "body", "head"])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_models_are_chains_and_what_is_frozen_stays(name: str, part: str) -> None:
    family, shape = NETWORKS[name]
    network = lay_out(family.build(Task(shape, 10)))
    parts, feed = [network.get_submodule(part)], some_feed(shape, 10, samples=5, batch=3, last=2)
    start, theirs = network.state_dict(), taught(network, parts, feed, PLAIN)
    for build in BUILDS[-1:]:
        mine = learned(network, parts, feed, PLAIN, build)
        close(mine, theirs)
        for key, t in mine.items():
            assert torch.equal(t, start[key]) == (not key.startswith(part))
            assert t.stride() == start[key].stride()


@pytest.mark.parametrize("build", BUILDS)
def test_gradients_are_finite_differences(build: str) -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3))
    x, y = torch.randn(3, 1, 5, 5), torch.tensor([0, 2, 1])
    mine = learned(network, [network], feed_of(x, y, torch.arange(3).view(1, 3)), Rates(1.0, 0.0, 0.0), build)
    exact, step = copy.deepcopy(network).double(), 1e-6
    with torch.no_grad():
        for key, weights in exact.state_dict().items():
            slopes = torch.zeros_like(weights).flatten()
            for k, values in ((k, weights.view(-1)) for k in range(weights.numel())):
                for sign in (1, -1):
                    values[k] += sign * step
                    slopes[k] += sign * cross_entropy(exact(x.double()), y) / (2 * step)
                    values[k] -= sign * step
            moved = (network.state_dict()[key] - mine[key]).double().flatten()
            torch.testing.assert_close(moved, slopes, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("build", BUILDS)
def test_a_model_that_diverges_says_so(build: str) -> None:
    """NaN goes through ReLU and maxima as it does in torch, and is not taken for a dead unit."""
    network = nn.Sequential(nn.Conv2d(1, 3, 2), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))
    x, y = torch.randn(2, 1, 5, 5), torch.tensor([0, 1])
    x[1, 0, 2, 2] = torch.nan
    mine = learned(network, [network], feed_of(x, y, torch.tensor([[0, 1]])), PLAIN, build)
    assert mine["4.bias"].isnan().all()


@pytest.mark.parametrize("build", BUILDS)
def test_a_label_that_is_no_class_changes_nothing(build: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT, build)
    network = nn.Sequential(nn.Linear(4, 3))
    before = [p.detach().clone() for p in network.parameters()]
    for label, rows in ((3, [[0, 1]]), (-1, [[1, 0]]), (0, [[0, 2]])):
        kernel = NativeKernel.of(network, [network], PLAIN)
        assert kernel is not None
        with pytest.raises(IndexError, match="does not exist, or its label is not a class"):
            kernel.train(feed_of(torch.randn(2, 4), torch.tensor([label, 0]), torch.tensor(rows)))
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))


@pytest.mark.parametrize("build", BUILDS)
def test_samples_that_do_not_fit_are_refused(build: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT, build)
    network = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 2))
    for x in (torch.randn(1, 1, 4, 4), torch.randn(1, 2, 2, 2), torch.randn(1, 2, 5, 5), torch.randn(1, 2)):
        with pytest.raises(ValueError, match=r"takes|fit"):
            predict(network, x)


def test_nothing_said_about_no_samples() -> None:
    said = predict(nn.Sequential(nn.Linear(3, 5)), torch.empty(0, 3))
    assert said is None if not BUILDS else said is not None and said.shape == (0, 5)


@pytest.mark.parametrize(("part", "times"), [("", 3), ("body", 3), ("head", 2)])
def test_operations_are_counted_where_gradients_go(part: str, times: int) -> None:
    """Three products of 4 x 6 and 6 x 5; the first layer needs no gradient by its input."""
    network = SplitModel(nn.Linear(4, 6), nn.Linear(6, 5))
    kernel = NativeKernel.of(network, [network.get_submodule(part)], PLAIN)
    if BUILDS:
        assert kernel is not None
        kernel.train(some_feed((4,), 5))
        first = 1 if part == "head" else 2
        assert kernel.flops == (4 + 3) * 2 * (first * 24 + (times - (part == "body")) * 30)


def shared() -> nn.Sequential:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, layer)


class OwnLinear(nn.Linear):
    """Whose forward pass may be any."""


@pytest.mark.parametrize(
    "network",
    [
        nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(4, 4), OwnLinear(4, 2)),
        nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(4, 2)),
        nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 2)),
        nn.Sequential(nn.Conv2d(2, 2, 3, groups=2), nn.Flatten(), nn.Linear(2, 2)),
        nn.Sequential(nn.Conv2d(2, 2, 3, dilation=2), nn.Flatten(), nn.Linear(2, 2)),
        nn.Sequential(nn.Conv2d(2, 2, 3, padding="same"), nn.Flatten(), nn.Linear(2, 2)),
        nn.Sequential(nn.Conv2d(2, 2, 3), nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
        nn.Sequential(nn.Linear(4, 4).double()),
        SplitModel(nn.Sequential(nn.Flatten()), nn.Identity()),
        ResNet18().build(Task((3, 8, 8), 2)),
        shared(),
    ],
    ids=lambda m: "-".join(type(x).__name__ for x in m.children()),
)
def test_other_networks_are_left_to_torch(network: nn.Module) -> None:
    assert NativeKernel.of(network, [network], PLAIN) is None
