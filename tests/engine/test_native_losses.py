"""The native kernels know every task's loss, and clip gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from native_chains import BUILDS, feed_of, learned, some_feed, taught
from torch import Tensor, nn

from headwise.engine.kernels.native.library import LIMIT
from headwise.engine.kernels.training import Feed, NativeKernel, Rates, choose
from headwise.models.base import Task
from headwise.models.cnn import CNN
from headwise.tasks.base import Objective
from headwise.tasks.classification import CROSS_ENTROPY, CrossEntropy
from headwise.tasks.multilabel import BinaryCrossEntropy
from headwise.tasks.regression import SquaredError

N = 18
"""outputs: more than a vector, and not a whole number of them"""
WEIGHTS = torch.linspace(0.2, 3, N)
OBJECTIVES = {
    "classes": CROSS_ENTROPY,
    "weighted classes": CrossEntropy(N, WEIGHTS, 0.1),
    "labels": BinaryCrossEntropy(N),
    "weighted labels": BinaryCrossEntropy(N, torch.stack([WEIGHTS.flip(0), WEIGHTS]), 0.1),
    "quantities": SquaredError(torch.linspace(-1, 1, N), WEIGHTS),
}
PLAIN, ALL = Rates(0.1, 0.0, 0.0), Rates(0.1, 0.9, 0.05)
RATES = [PLAIN, ALL, PLAIN._replace(clip=0.05), ALL._replace(clip=0.3)]


def network() -> nn.Sequential:
    convolutions = nn.Conv2d(2, 5, (3, 2), 2, 1), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Conv2d(5, 18, 2), nn.ReLU()
    return nn.Sequential(
        *convolutions, nn.AvgPool2d((1, 2)), nn.Flatten(), nn.Linear(108, 33), nn.ReLU(), nn.Linear(33, N)
    )


def targets(objective: Objective, n: int) -> Tensor:
    if isinstance(objective, CrossEntropy):
        return torch.arange(n) * 5 % N
    return (torch.randn(n, N) > 0).float() if isinstance(objective, BinaryCrossEntropy) else 3 * torch.randn(n, N)


def feed_for(objective: Objective) -> Feed:
    x, _, batches = some_feed((2, 9, 12), N).whole()
    return feed_of(x, targets(objective, len(x)), batches)


@pytest.mark.parametrize("rates", RATES, ids=str)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_loss_and_clip_is_learned_as_torch_does_in_double(name: str, rates: Rates) -> None:
    """And by all builds to the same bits."""
    objective, made = OBJECTIVES[name], network()
    feed = feed_for(objective)
    theirs = taught(made, [made], feed, rates, objective)
    found = [learned(made, [made], feed, rates, build, objective) for build in BUILDS]
    for mine in found:
        for key, t in theirs.items():
            torch.testing.assert_close(mine[key].double(), t, rtol=1e-5, atol=1e-5)
            assert torch.equal(mine[key], found[0][key])
    assert max(float((t - made.state_dict()[k]).abs().max()) for k, t in theirs.items()) > 1e-4


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("name", ["labels", "quantities"])
def test_gradients_of_other_losses_are_finite_differences(name: str, build: str) -> None:
    objective, made = OBJECTIVES[name], nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, N))
    x, y, step = torch.randn(3, 3), targets(objective, 3), 1e-6
    feed = feed_of(x, y, torch.arange(3).view(1, 3))
    mine = learned(made, [made], feed, Rates(1.0, 0.0, 0.0), build, objective)
    exact = copy.deepcopy(made).double()
    with torch.no_grad():
        for key, weights in exact.state_dict().items():
            slopes, values = torch.zeros_like(weights).flatten(), weights.view(-1)
            for k in range(len(values)):
                for sign in (1, -1):
                    values[k] += sign * step
                    slopes[k] += sign * objective.loss(exact(x.double()), y.double()) / (2 * step)
                    values[k] -= sign * step
            moved = (made.state_dict()[key] - mine[key]).double().flatten()
            torch.testing.assert_close(moved, slopes, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("build", BUILDS)
def test_a_clipped_step_has_its_norm_and_a_small_one_keeps_its_bits(build: str) -> None:
    made, feed = network(), feed_for(CROSS_ENTROPY)
    x, y, batches = feed.whole()
    once = feed_of(x, y, batches[:1])
    short = learned(made, [made], once, Rates(1.0, 0.0, 0.0, clip=0.01), build)
    moved = torch.cat([(t - short[k]).double().flatten() for k, t in made.state_dict().items()])
    assert float(moved.norm()) == pytest.approx(0.01, rel=1e-3)
    free, loose = (learned(made, [made], feed, rates, build) for rates in (PLAIN, PLAIN._replace(clip=1e6)))
    assert all(torch.equal(t, loose[k]) for k, t in free.items())


@pytest.mark.parametrize("build", BUILDS)
def test_what_is_frozen_does_not_count_in_the_norm(build: str) -> None:
    made, rates = network(), PLAIN._replace(clip=0.02)
    feed, head = feed_for(CROSS_ENTROPY), made[-1]
    mine, theirs = learned(made, [head], feed, rates, build), taught(made, [head], feed, rates)
    for key, t in theirs.items():
        torch.testing.assert_close(mine[key].double(), t, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_extreme_scores_give_finite_gradients(name: str, build: str) -> None:
    objective, made = OBJECTIVES[name], nn.Sequential(nn.Linear(2, N))
    x = torch.tensor([[1e3, -1e3], [-1e4, 1e4], [0.0, 0.0]])
    feed = feed_of(x, targets(objective, 3), torch.arange(3).view(1, 3))
    mine = learned(made, [made], feed, PLAIN, build, objective)
    theirs = taught(made, [made], feed, PLAIN, objective)
    for key, t in theirs.items():
        torch.testing.assert_close(mine[key].double(), t, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("build", BUILDS)
def test_targets_of_another_shape_are_refused(build: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT, build)
    made = nn.Sequential(nn.Linear(4, N))
    kernel = NativeKernel.of(made, [made], PLAIN, OBJECTIVES["labels"])
    assert kernel is not None
    with pytest.raises(ValueError, match=r"targets are \(2, 17\), but must be \(2, 18\)"):
        kernel.train(feed_of(torch.randn(2, 4), torch.zeros(2, 17), torch.tensor([[0, 1]])))


def test_clipping_stays_native_and_projections_go_to_autograd() -> None:
    made = CNN().build(Task((1, 16, 16), 3))
    clipped = choose(made, [made], None, PLAIN._replace(clip=1.0), models=[made])
    projected = choose(made, [made], None, PLAIN, models=[made], project=lambda: None)
    assert (clipped.name, projected.name) == ("native" if BUILDS else "plain", "plain")
