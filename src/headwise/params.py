"""Named tensors that add, subtract and scale like the vectors in a paper, and mathematics that methods share."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax


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

    def add_prefix(self, prefix: str) -> Params:
        """The same tensors, their names after `prefix`."""
        return Params({f"{prefix}{k}": t for k, t in self.items()})

    def strip_prefix(self, prefix: str) -> Params:
        """Those whose name starts with `prefix`, named without it."""
        return Params({k.removeprefix(prefix): t for k, t in self.select(prefix).items()})

    def restrict(self, names: Iterable[str]) -> Params:
        """Those with these names, in this order; all must exist."""
        return Params({k: self[k] for k in names})

    def flatten(self) -> Tensor:
        """All numbers in one row."""
        return torch.cat([t.flatten() for t in self.values()])

    def clamp(self, low: float, high: float) -> Params:
        """All numbers between these two; those outside become the nearer one."""
        return self.map(lambda t: t.clamp(low, high))

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
    """The weighted mean of parameters; integer tensors come from the first item.

    Adds in the order of the items, so equal inputs in equal order give equal bits.

    Args:
        items: Parameters with the same names.
        weights: One for each item, with any sum above 0; None: all count the same.

    Returns:
        sum_k p_k w_k, with p_k normalized to sum to one.

    >>> mean([Params(a=torch.tensor(1.0)), Params(a=torch.tensor(4.0))], weights=[2, 1])["a"].item()
    2.0
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
    """The gradient of a function.

    Args:
        f: A function of parameters, whose value is a scalar.
        at: The point.

    Returns:
        The slope by each parameter.

    >>> gradient(Params.sq_norm, Params(a=torch.tensor([3.0])))["a"].item()
    6.0
    """
    point = at.map(lambda t: t.detach().requires_grad_())
    slopes = torch.autograd.grad(f(point), list(point.values()))
    return Params(dict(zip(point, slopes, strict=True)))


def step(at: Params, slope: Params, lr: float) -> Params:
    """One step of gradient descent.

    Args:
        at: The point.
        slope: The gradient there.
        lr: The learning rate.

    Returns:
        ``at - lr * slope``, in the memory layout of `at`.

    >>> step(Params(a=torch.tensor(3.0)), Params(a=torch.tensor(2.0)), lr=0.5)["a"].item()
    2.0
    """
    return at.zip(slope, lambda t, g: torch.sub(t.detach(), lr * g, out=torch.empty_like(t)))  # in the layout of t


B = TypeVar("B")


def descend(at: Params, loss: Callable[[Params, B], Tensor], batches: Iterable[B], lr: float) -> Params:
    """Plain gradient descent: a step for each batch.

    Args:
        at: Where to begin.
        loss: A scalar function of the parameters and a batch.
        batches: The batches, one for each step.
        lr: The learning rate.

    Returns:
        Where the last step ends.

    >>> from torch import tensor
    >>> descend(Params(a=tensor(8.0)), lambda w, scale: scale * w.sq_norm(), [1.0, 0.5], lr=0.25)["a"].item()
    3.0
    """
    for batch in batches:
        at = step(at, gradient(lambda w, batch=batch: loss(w, batch), at), lr)
    return at


def shuffle(n: int, size: int, rng: torch.Generator) -> tuple[Tensor, ...]:
    """The numbers below `n` in a random order, in batches.

    Args:
        n: How many numbers.
        size: How many of them in a batch; the last one may have fewer.
        rng: Where randomness comes from, such as ``central.rng``.

    Returns:
        The batches, as indices.

    >>> [len(batch) for batch in shuffle(5, 2, torch.Generator())]
    [2, 2, 1]
    """
    return torch.split(torch.randperm(n, generator=rng), size)


def merge_by_client(old: Mapping[int, Params], new: Mapping[int, Params]) -> dict[int, Params]:
    """The parameters of both, in the order of clients, so that sums over them always give the same bits.

    Args:
        old: Parameters by client.
        new: Parameters by client, which replace the old ones.

    Returns:
        Parameters by client.

    >>> a, b = Params(), Params()
    >>> [*merge_by_client({2: a}, {1: b})]
    [1, 2]
    """
    return dict(sorted({**old, **new}.items()))


def last_matrix(params: Params) -> str:
    """The name of the last matrix of these parameters: the weights of a head's last layer.

    Args:
        params: The parameters of a head or of a network.

    Returns:
        Its name.

    >>> last_matrix(Params(weight=torch.zeros(3, 2), bias=torch.zeros(3)))
    'weight'
    """
    return [name for name, t in params.items() if t.dim() == 2][-1]


def project_to_simplex(rows: Tensor, size: Tensor | float = 1.0) -> Tensor:
    """The nearest numbers that are not negative and sum to `size`; Held, Wolfe and Crowder, 1974.

    Args:
        rows: [n, k], each row a point.
        size: What the numbers of a point must sum to.

    Returns:
        [n, k]: the nearest point to each.

    >>> project_to_simplex(torch.tensor([[0.5, 1.5]]))
    tensor([[0., 1.]])
    """
    u = rows.sort(1, descending=True).values
    excess = u.cumsum(1) - size
    k = torch.arange(1, rows.shape[1] + 1)
    count = (u - excess / k > 0).sum(1, keepdim=True)
    return (rows - excess.gather(1, count - 1) / count).clamp(min=0)


def mark_largest(scores: Tensor, share: float) -> Tensor:
    """Which of these scores are among the largest; of equal ones the first.

    Args:
        scores: Of any shape.
        share: The share of all scores to mark, rounded down.

    Returns:
        A boolean tensor of the same shape.

    >>> mark_largest(torch.tensor([1.0, 3.0, 3.0]), 0.4)
    tensor([False,  True, False])
    """
    order = scores.flatten().sort(descending=True, stable=True).indices
    marked = torch.zeros_like(scores, dtype=torch.bool)
    marked.view(-1)[order[: int(round(share * len(order), 6))]] = True  # 0.7 * 5130 alone is 3590.9999999999995
    return marked


def differentiate_along(at: Params, direction: Params, by: Tensor) -> Params:
    """Let a scalar learn how far to move in a direction, without moving.

    Args:
        at: The point.
        direction: The direction.
        by: The scalar.

    Returns:
        The same point, but with gradients for `by`, as if the point were ``at + by * direction``.

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


def kl(p: Tensor, q: Tensor) -> Tensor:
    """The Kullback-Leibler divergence of predictions.

    Args:
        p: [n, classes], scores.
        q: [n, classes], scores.

    Returns:
        KL(p || q) of the distributions that the scores stand for, the mean over the batch.

    >>> kl(torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 3.0]])).item()  # a softmax ignores what is added to all
    0.0
    """
    return kl_div(log_softmax(q, 1), log_softmax(p, 1), reduction="batchmean", log_target=True)


BANDWIDTHS = (10, 15, 20, 50)


def mmd(x: Tensor, y: Tensor) -> Tensor:
    """The squared maximum mean discrepancy of two samples, with a sum of Gaussian kernels; Gretton et al., JMLR 2012.

    Args:
        x: [n, features], one sample.
        y: [m, features], the other.

    Returns:
        A number, 0 if both are equal.

    >>> mmd(torch.eye(3), torch.eye(3)).item()
    0.0
    """
    n = len(x)
    z = torch.cat((x, y))
    d = z.square().sum(1)[:, None] + z.square().sum(1) - 2 * z @ z.T
    k = torch.stack([(-d / (2 * s)).exp() for s in BANDWIDTHS]).sum(0)
    return k[:n, :n].mean() + k[n:, n:].mean() - 2 * k[:n, n:].mean()
