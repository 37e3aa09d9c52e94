"""Named tensors that add, subtract and scale like the vectors in a paper."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any

import torch
from torch import Tensor


class Params(Mapping[str, Tensor]):
    """An immutable mapping ``name -> tensor`` with vector arithmetic.

    Both operands must have the same names; nothing is ever matched by position.

    >>> w, g = Params(a=torch.tensor([3.0])), Params(a=torch.tensor([1.0]))
    >>> (w - 0.5 * g)["a"].item()
    2.5
    """

    __slots__ = ("_tensors",)

    def __init__(self, tensors: Mapping[str, Tensor] | None = None, /, **named: Tensor) -> None:
        self._tensors: dict[str, Tensor] = {**(tensors or {}), **named}

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    # the dict's own views: those of `Mapping` are in Python, and every client uses them many times
    def keys(self) -> KeysView[str]:
        return self._tensors.keys()

    def values(self) -> ValuesView[Tensor]:
        return self._tensors.values()

    def items(self) -> ItemsView[str, Tensor]:
        return self._tensors.items()

    def __repr__(self) -> str:
        shapes = ", ".join(f"{k}: {tuple(t.shape)}" for k, t in self.items())
        return f"Params({shapes})"

    def map(self, f: Callable[[Tensor], Tensor]) -> Params:
        """Apply `f` to each tensor."""
        return Params({k: f(t) for k, t in self.items()})

    def zip(self, other: Params, f: Callable[[Tensor, Tensor], Tensor]) -> Params:
        """Apply `f` to each pair of tensors with the same name; the names must agree."""
        if self.keys() != other.keys():
            raise KeyError(f"names differ: {sorted(self.keys() ^ other.keys())}")
        return Params({k: f(t, other[k]) for k, t in self.items()})

    def __add__(self, other: Params) -> Params:
        return self.zip(other, torch.add)

    def __sub__(self, other: Params) -> Params:
        return self.zip(other, torch.sub)

    def __mul__(self, other: Params | Tensor | float) -> Params:
        """Multiply by a scalar, or element-wise by other parameters."""
        if isinstance(other, Params):
            return self.zip(other, torch.mul)
        return self.map(lambda t: t * other)

    __rmul__ = __mul__

    def __truediv__(self, scalar: float) -> Params:
        return self.map(lambda t: t / scalar)

    def __or__(self, other: Params) -> Params:
        """The union of both; a name in both is an error."""
        if both := self.keys() & other.keys():
            raise KeyError(f"named twice: {sorted(both)}")
        return Params({**self, **other})

    def select(self, prefix: str) -> Params:
        """Those whose name starts with `prefix`."""
        return Params({k: t for k, t in self.items() if k.startswith(prefix)})

    def restrict(self, names: Iterable[str]) -> Params:
        """Those with these names, in this order; all must exist."""
        return Params({k: self[k] for k in names})

    def zeros(self) -> Params:
        return self.map(torch.zeros_like)

    def dot(self, other: Params) -> Tensor:
        """The inner product over all names."""
        products = self.zip(other, torch.mul).map(torch.sum)
        return torch.stack(list(products.values())).sum() if products else torch.zeros(())

    def sq_norm(self) -> Tensor:
        return self.dot(self)

    def numel(self) -> int:
        return sum(t.numel() for t in self.values())


def mean(items: Iterable[Params], weights: Iterable[float] | None = None) -> Params:
    """The weighted mean sum_k p_k w_k, with p_k normalised to sum to one; integer tensors come from the first item.

    Adds in the order of the items, so equal inputs in equal order give equal bits.
    """
    items = list(items)
    shares = [1.0] * len(items) if weights is None else list(weights)
    if not items or (total := sum(shares)) <= 0:
        raise ValueError("the mean of nothing is not defined")
    result = items[0].map(lambda t: t * (shares[0] / total) if t.is_floating_point() else t)
    sums = {k: t for k, t in result.items() if t.is_floating_point()}
    for item, share in zip(items[1:], shares[1:], strict=True):
        if item.keys() != result.keys():
            raise KeyError(f"names differ: {sorted(item.keys() ^ result.keys())}")
        for k, t in sums.items():
            t.add_(item[k], alpha=share / total)
    return result


def gradient(f: Callable[[Params], Tensor], at: Params) -> Params:
    """The gradient of the scalar function `f` at this point.

    >>> gradient(Params.sq_norm, Params(a=torch.tensor([3.0])))["a"].item()
    6.0
    """
    point = at.map(lambda t: t.detach().requires_grad_())
    slopes = torch.autograd.grad(f(point), list(point.values()))
    return Params(dict(zip(point, slopes, strict=True)))


def step(at: Params, slope: Params, lr: float) -> Params:
    """One step of gradient descent: at - lr * slope."""
    return at.zip(slope, lambda t, g: torch.sub(t.detach(), lr * g, out=torch.empty_like(t)))  # in the layout of t


def differentiate_along(at: Params, direction: Params, by: Tensor) -> Params:
    """The same point, but with gradients for the scalar `by`, as if the point were at + by * direction.

    >>> at, direction = Params(a=torch.tensor([3.0])), Params(a=torch.tensor([2.0]))
    >>> mu = torch.tensor(0.5, requires_grad=True)
    >>> torch.autograd.grad(differentiate_along(at, direction, mu).sq_norm(), mu)[0].item()
    12.0
    """

    def attach(t: Tensor, d: Tensor) -> Tensor:
        return _Along.apply(t, d, by)  # pyright: ignore

    return at.zip(direction, attach)


class _Along(torch.autograd.Function):
    """One tensor of `differentiate_along`: no sum is computed and stored, only the product of both gradients."""

    @staticmethod
    def forward(ctx: Any, at: Tensor, direction: Tensor, by: Tensor) -> Tensor:
        ctx.save_for_backward(direction)
        return at.view_as(at)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        (direction,) = ctx.saved_tensors
        return slopes[0], None, (slopes[0] * direction).sum()
