"""The nervous CPU is nervous: what it does to a result depends on memory layout and rows alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d, linear

from headwise.testing.nervous import Nervous


def behind(offset: int, t: Tensor) -> Tensor:
    """The same numbers, beginning this many floats after a cache line."""
    moved = torch.empty(t.numel() + 16)[offset : offset + t.numel()].view(t.shape)
    return moved.copy_(t)


W, X = torch.randn(5, 7), torch.randn(4, 7)


def variants(results: list[Tensor]) -> int:
    """How many of them differ in their bits."""
    return len({t.numpy().tobytes() for t in results})


def test_a_product_follows_its_operands() -> None:
    with Nervous() as nervous:
        still = [linear(X, W) for _ in range(5)]
        moved = [linear(behind(k, X), W) for k in range(16)]
        rows = [linear(X[:n].clone(), W)[0] for n in range(1, 5)]
        turned = [X.mm(W.t()), X.mm(W.t().contiguous())]
    assert variants(still) == 1
    assert variants(moved) > 1
    assert variants(rows) > 1
    assert variants(turned) > 1
    assert nervous.touched
    torch.testing.assert_close(moved[1], linear(X, W), rtol=1e-5, atol=1e-6)


def test_a_slice_of_a_stack_follows_its_own_place() -> None:
    def stacked(clients: int, inner: int) -> Tensor:
        x, w = torch.ones(1, 4, inner), torch.linspace(0.1, 0.2, inner * 3).view(1, inner, 3)
        return torch.bmm(x.expand(clients, -1, -1).contiguous(), w.expand(clients, -1, -1).contiguous())

    with Nervous():
        many, few, odd = stacked(9, 16), stacked(2, 16), stacked(9, 7)
    assert variants(list(many)) == 1, "every slice begins on a cache line"
    assert torch.equal(many[0], few[0]), "their number changes nothing"
    assert variants(list(odd)) > 1


def test_gradients_are_made_by_the_same_cpu() -> None:
    def slope(x: Tensor) -> Tensor:
        w = W.clone().requires_grad_()
        (found,) = torch.autograd.grad(linear(x, w).square().sum(), w)
        return found

    with Nervous():
        assert variants([slope(behind(k, X)) for k in range(16)]) > 1


@pytest.mark.parametrize(
    "make",
    [
        lambda x: conv2d(x.view(1, 1, 4, 7), torch.ones(2, 1, 3, 3)),
        lambda x: x.sum(0),
        lambda x: x.mean(),
        lambda x: x.softmax(1),
        lambda x: x.norm(),
        torch.exp,
    ],
)
def test_convolutions_and_reductions_are_nervous_too(make: object) -> None:
    assert callable(make)
    with Nervous():
        assert variants([make(behind(k, X)) for k in range(16)]) > 1
    assert variants([X + behind(k, X) for k in range(16)]) == 1, "what is never rounded otherwise is left alone"
