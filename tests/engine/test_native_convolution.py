"""Convolutions inside networks that are no chains: torch's results, the same bits on every CPU, steps in place."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from native_chains import BUILDS
from torch import Tensor, nn

from headwise.engine.kernels.native.autograd import NativeConvolution, fuse_steps
from headwise.engine.kernels.native.library import LIMIT
from headwise.engine.kernels.optimizer import Rates, Terms
from headwise.engine.kernels.training import PlainKernel, choose
from headwise.models.resnet18 import Block

pytestmark = pytest.mark.skipif(not BUILDS, reason="there is no native library")


def make_fast(network: nn.Module) -> Any:
    twin = copy.deepcopy(network)
    NativeConvolution.install(twin)
    assert any(isinstance(m.forward, NativeConvolution) for m in twin.modules())
    return twin


def make_samples(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def compute_gradients(network: nn.Module, x: Tensor) -> list[Tensor]:
    """The output, and the gradients by the input and all weights."""
    x = x.clone().requires_grad_()
    out = network(x)
    return [out, *torch.autograd.grad(out.sin().sum(), [x, *network.parameters()])]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_results_are_torchs_on_every_cpu(data: st.DataObject) -> None:
    channels, outputs = (data.draw(st.sampled_from([1, 3, 16, 48])), data.draw(st.sampled_from([1, 5, 17, 64, 70])))
    kernel, padding, stride = (
        tuple(data.draw(st.integers(low, most)) for _ in "hw") for low, most in ((1, 4), (0, 2), (1, 3))
    )
    height, width, n = (data.draw(st.integers(1, most)) for most in (6, 6, 4))
    assume(all(size + 2 * p >= k for size, p, k in zip((height, width), padding, kernel, strict=True)))
    shape: Any = kernel, stride, padding
    layer = nn.Conv2d(channels, outputs, *shape, bias=data.draw(st.booleans()))
    x = make_samples(n, channels, height, width)
    results: list[list[Tensor]] = []
    for name in BUILDS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(LIMIT, name)
            results.append(compute_gradients(make_fast(layer), x))
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))
    for a, b in zip(results[0], compute_gradients(copy.deepcopy(layer).double(), x.double()), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)


def make_network() -> nn.Sequential:
    torch.manual_seed(0)
    blocks = Block(3, 16, 2, nn.BatchNorm2d), Block(16, 64, 2, nn.BatchNorm2d), Block(64, 64, 2, nn.BatchNorm2d)
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(64, 5))


@pytest.mark.parametrize("lr", [None, 0.1])
def test_a_step_is_torchs_whoever_takes_it(lr: float | None) -> None:
    network = make_network()
    x, y = make_samples(4, 3, 8, 8), torch.arange(4)

    def train(net: nn.Module, rate: float | None) -> dict[str, Tensor]:
        weights, dtype = list(net.parameters()), next(net.parameters()).dtype
        with fuse_steps(rate):
            loss = nn.functional.cross_entropy(net(x.to(dtype)), y)
            gradients = torch.autograd.grad(loss, weights, allow_unused=True)
        stepped = [w for w, g in zip(weights, gradients, strict=True) if g is None]
        assert bool(stepped) == (rate is not None)
        with torch.no_grad():
            for w, g in zip(weights, gradients, strict=True):
                if g is not None:
                    w.sub_(g, alpha=0.1)
        return net.state_dict()

    ours, theirs = train(make_fast(network), lr), train(copy.deepcopy(network).double(), None)
    for name, t in ours.items():
        torch.testing.assert_close(t.double(), theirs[name].double(), rtol=1e-3, atol=1e-4)


def test_a_weight_that_is_used_twice_gets_its_whole_gradient() -> None:
    layer = nn.Conv2d(16, 16, 3, padding=1)
    fast, x = make_fast(layer), make_samples(2, 16, 1, 1)
    with fuse_steps(0.1):
        (ours,) = torch.autograd.grad(fast(fast(x)).square().sum(), [fast.weight])
    (theirs,) = torch.autograd.grad(layer(layer(x)).square().sum(), [layer.weight])
    torch.testing.assert_close(ours, theirs)


def test_second_derivatives_are_torchs() -> None:
    layer, x = nn.Conv2d(3, 4, 2), make_samples(2, 3, 5, 5)

    def differentiate_twice(net: nn.Module) -> Tensor:
        (slope,) = torch.autograd.grad(net(x).pow(3).sum(), [net.weight], create_graph=True)  # type: ignore[list-item]
        return torch.autograd.grad(slope.square().sum(), [net.weight])[0]  # type: ignore[list-item]

    torch.testing.assert_close(differentiate_twice(make_fast(layer)), differentiate_twice(layer), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("what", ["momentum", "clip", "loss", "terms", "plain"])
def test_only_plain_steps_are_taken_during_the_pass_back(what: str) -> None:
    network = make_network()
    rates = {"momentum": Rates(0.1, momentum=0.5), "clip": Rates(0.1, clip=1.0)}.get(what, Rates(0.1))
    loss = (lambda x, y: network(x).sum()) if what == "loss" else None
    terms = Terms(0.1) if what == "terms" else None
    kernel = choose(network, (network,), loss, rates, models=(network,), terms=terms)
    assert isinstance(kernel, PlainKernel)
    assert (kernel.lr is not None) == (what == "plain")


def test_hooks_leave_a_convolution_to_torch() -> None:
    fast = make_fast(nn.Conv2d(3, 4, 2))
    fast.register_forward_hook(lambda *_: None)
    assert "Native" not in str(fast(make_samples(1, 3, 4, 4)).grad_fn)
    assert "_Convolution" not in str(fast(make_samples(1, 3, 4, 4)).grad_fn)
