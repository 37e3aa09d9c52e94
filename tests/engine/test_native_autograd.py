"""The native chain under autograd: any loss on a body's features, with torch's gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from native_chains import BUILDS, chains
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from headwise.engine.kernels.native.autograd import NativeConvolution, NativeForward
from headwise.engine.kernels.native.chain import native
from headwise.engine.kernels.native.library import LIMIT
from headwise.models.split import SplitModel
from headwise.params import Params

pytestmark = pytest.mark.skipif(not BUILDS, reason="there is no native library")


def body() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(2, 5, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(5, 18, 2), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(162, 32), nn.ReLU()),
    )


def samples(n: int = 4, shape: tuple[int, ...] = (2, 8, 8)) -> Tensor:
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(1))


def fast(network: nn.Module) -> nn.Module:
    twin = copy.deepcopy(network)
    NativeForward.install(twin)
    assert isinstance(twin.forward, NativeForward)
    return twin


def gradients(network: nn.Module, x: Tensor, **more: Any) -> list[Tensor]:
    """Of a loss that no kernel knows."""
    features = network(x)
    loss = (features.tanh() @ features.T.cos()).sum() / len(x)
    return list(torch.autograd.grad(loss, [p for p in network.parameters() if p.requires_grad], **more))


@given(chains(), st.integers(1, 7), st.booleans())
@settings(max_examples=40)
def test_gradients_are_torchs_on_every_cpu(chain: Any, n: int, whole: bool) -> None:
    network, shape, _ = chain
    assume(any(isinstance(m, nn.Conv2d) for m in network))
    network = network if whole else network[:-1]
    x = samples(n, shape)
    found: list[list[Tensor]] = []
    for name in BUILDS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(LIMIT, name)
            found.append(gradients(fast(network), x))
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))
    for a, b in zip(found[0], gradients(copy.deepcopy(network).double(), x.double()), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-3)


def test_frozen_layers_get_no_gradients() -> None:
    network = body()
    network[0].requires_grad_(False)
    twin = fast(network)
    got = gradients(twin, samples())
    for a, b in zip(got, gradients(network, samples()), strict=True):
        torch.testing.assert_close(a, b)
    assert len(got) == 4


def test_second_derivatives_are_torchs() -> None:
    def second(network: nn.Module) -> list[Tensor]:
        slopes = gradients(network, samples(), create_graph=True)
        return list(torch.autograd.grad(sum(g.square().sum() for g in slopes), list(network.parameters())))  # type: ignore

    network = body()
    for a, b in zip(second(fast(network)), second(network), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_two_passes_do_not_disturb_each_other() -> None:
    network = fast(body())
    weights = list(network.parameters())
    losses = [network(samples(n)).square().sum() for n in (3, 5)]
    both = [torch.autograd.grad(loss, weights) for loss in losses]
    for n, got in zip((3, 5), both, strict=True):
        alone = torch.autograd.grad(network(samples(n)).square().sum(), weights)
        assert all(torch.equal(a, b) for a, b in zip(got, alone, strict=True))


def test_a_second_pass_back_leaves_the_first_ones_gradients_alone() -> None:
    network = fast(body())
    weights, loss = list(network.parameters()), network(samples()).square().sum()
    first = torch.autograd.grad(loss, weights, retain_graph=True)
    before = [g.clone() for g in first]
    again = torch.autograd.grad(3 * loss, weights)
    assert all(torch.equal(a, b) for a, b in zip(first, before, strict=True))
    for a, b in zip(first, again, strict=True):
        torch.testing.assert_close(3 * a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", ["own", "other"])
def test_given_parameters_are_those_that_learn(layout: str) -> None:
    """In any layout, as in `functional_call` to the bit."""
    network = body()
    start = {k: (p.detach() / 2).requires_grad_() for k, p in network.named_parameters()}
    if layout == "other":
        start = {k: turned(p.detach()).requires_grad_() for k, p in start.items()}
        assert not start["6.weight"].is_contiguous()

    def slopes(call: Callable[[], Tensor]) -> list[Tensor]:
        return list(torch.autograd.grad(call().square().sum(), list(start.values())))

    native_body = fast(network)
    ours = slopes(lambda: SplitModel(native_body, nn.Identity()).body_given(Params(start))(samples()))
    assert all(g.any() for g in ours)
    for a, b in zip(ours, slopes(lambda: functional_call(native_body, start, (samples(),))), strict=True):
        assert torch.equal(a, b) or layout == "other"  # then the latter is torch's
    for a, b in zip(ours, slopes(lambda: functional_call(network, start, (samples(),))), strict=True):
        torch.testing.assert_close(a, b)


def turned(t: Tensor) -> Tensor:
    """The same values, the last dimension being the slowest in memory."""
    return t.clone() if t.dim() < 2 else t.movedim(-1, 0).contiguous().movedim(0, -1)


def test_parameters_that_are_not_given_are_the_bodys_own() -> None:
    network = fast(body())
    given_one = {"0.bias": torch.ones(5, requires_grad=True)}
    features = SplitModel(network, nn.Identity()).body_given(Params(given_one))(samples())
    assert torch.equal(features, functional_call(network, given_one, (samples(),)))


def test_a_layer_of_which_a_part_learns_is_torchs() -> None:
    network = fast(body()).requires_grad_(False)
    given_one = Params({"0.bias": torch.ones(5, requires_grad=True)})
    features = SplitModel(network, nn.Identity()).body_given(given_one)(samples())
    assert "Chain" not in type(features.grad_fn).__name__
    (slope,) = torch.autograd.grad(features.sum(), [given_one["0.bias"]])
    assert slope.any()


def test_a_copy_computes_with_its_own_weights() -> None:
    network = fast(body())
    twin = copy.deepcopy(network)
    with torch.no_grad():
        for p in twin.parameters():
            p.zero_()
    assert torch.equal(twin(samples()), torch.zeros(4, 32))
    assert network(samples()).any()


@pytest.mark.parametrize("what", ["hook", "inputs", "double", "off"])
def test_whatever_the_kernels_do_not_know_is_torchs(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = fast(body())
    x = samples()
    calls: list[Any] = []
    if what == "hook":
        network[0].register_forward_hook(lambda *a: calls.append(a))  # type: ignore[index]
    if what == "inputs":
        x.requires_grad_()
    if what == "double":
        network, x = network.double(), x.double()
    if what == "off":
        monkeypatch.setenv(LIMIT, "off")
    out = network(x)
    out.sum().backward()
    assert "Chain" not in type(out.grad_fn).__name__
    assert bool(calls) == (what == "hook")
    assert (x.grad is not None) == (what == "inputs")
    assert what != "off" or native().library is None


@pytest.mark.parametrize("install", [NativeForward.install, NativeConvolution.install])
def test_transforms_of_torch_func_are_torchs(install: Callable[[nn.Module], None]) -> None:
    """Per-sample gradients, as of FedAS's Fisher information."""
    network = body()
    twin = copy.deepcopy(network)
    install(twin)

    def slopes(net: nn.Module) -> dict[str, Tensor]:
        start = {k: p.detach() for k, p in net.named_parameters()}

        def loss(w: dict[str, Tensor], x: Tensor) -> Tensor:
            return functional_call(net, w, (x[None],)).square().sum()

        return vmap(grad(loss), in_dims=(None, 0))(start, samples())

    for a, b in zip(slopes(twin).values(), slopes(network).values(), strict=True):
        torch.testing.assert_close(a, b)


def test_only_convolutions_gain() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    NativeForward.install(network)
    assert "forward" not in vars(network)
