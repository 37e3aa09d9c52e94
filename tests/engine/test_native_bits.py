"""The same bits from every build of the native kernels, and whatever lies beside a sample or a client."""

from __future__ import annotations

import copy

import pytest
import torch
from awkward_shapes import SIZES, agree, plan
from native_chains import BUILDS, learned, some_feed
from torch import nn

from headwise.engine.kernels.native.chain import predict
from headwise.engine.kernels.native.library import LIMIT
from headwise.engine.kernels.optimizer import Rates
from headwise.engine.plan import Plan
from headwise.models.base import Task
from headwise.models.cnn import CNN
from headwise.models.split import lay_out
from headwise.testing.toy import need_equal, play

METHODS = ("fedavg", "fedah", "fedrep", "fedgmh")


def federation(method: str, model: str, rounds: int) -> Plan:
    shape = (30,) if model.startswith("mlp") else (1, 16, 16)
    return plan(method, model, shape, 7, 4, (9, 4, 6), rounds)


def all_builds_agree(made: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    traces = {}
    for build in BUILDS:
        monkeypatch.setenv(LIMIT, build)
        traces[build] = play(copy.deepcopy(made)).trace()
    for build, trace in traces.items():
        need_equal(traces[BUILDS[0]], trace, f"{made.method}: {build}")


@pytest.mark.parametrize("model", ["mlp:17", "cnn"])
@pytest.mark.parametrize("method", METHODS)
def test_every_build_gives_the_same_run(method: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    all_builds_agree(federation(method, model, 3), monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("model", ["mlp:17", "cnn", "lenet5"])
@pytest.mark.parametrize("method", METHODS)
def test_every_build_gives_the_same_run_after_twenty_rounds(
    method: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_builds_agree(federation(method, model, 20), monkeypatch)


@pytest.mark.parametrize("build", BUILDS)
def test_orders_and_sites_do_not_show_in_the_bits(build: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT, build)
    agree(plan("fedrep", "mlp:17", (6,), 8, 3, SIZES[:5]))
    agree(plan("fedavg", "cnn", (1, 16, 16), 3, 2, SIZES[1:4], rounds=1))


@pytest.mark.parametrize("build", BUILDS)
def test_what_is_said_of_a_sample_does_not_depend_on_those_beside_it(
    build: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LIMIT, build)
    for network, shape in ((CNN().build(Task((3, 17, 16), 5)), (3, 17, 16)), (nn.Linear(13, 7), (13,))):
        x = torch.randn(41, *shape)
        together = predict(network, x)
        assert together is not None
        for k in (0, 1, 15, 32, 40):
            assert torch.equal(predict(network, x[k : k + 1]), together[k : k + 1])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", BUILDS)
def test_where_samples_lie_does_not_show_in_the_bits(name: str) -> None:
    """Four bytes further on, or with the channels first."""
    network = lay_out(CNN().build(Task((3, 16, 16), 5)))
    feed, rates = some_feed((3, 16, 16), 5), Rates(0.1, 0.5, 0.01)
    x, y, batches = feed.whole()
    wanted = learned(network, [network], feed, rates, name)
    further = torch.empty(x.numel() + 1)[1:].view(x.shape).copy_(x)
    for other in (x.contiguous(), further):
        found = learned(network, [network], feed._replace(whole=lambda t=other: (t, y, batches)), rates, name)
        assert all(torch.equal(found[k], t) for k, t in wanted.items())
