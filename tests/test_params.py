"""Named tensors as vectors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from headwise.params import Params, gradient, mean, step


def params(**values: float | list[float]) -> Params:
    return Params({k: torch.tensor(v, dtype=torch.float32) for k, v in values.items()})


def plain(p: Params) -> dict[str, object]:
    return {k: t.tolist() for k, t in p.items()}


W, G = params(a=[3.0, 4.0], b=2.0), params(a=[1.0, -1.0], b=0.5)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (W + G, {"a": [4, 3], "b": 2.5}),
        (W - G, {"a": [2, 5], "b": 1.5}),
        (2 * W, {"a": [6, 8], "b": 4}),
        (W * 0.5, {"a": [1.5, 2], "b": 1}),
        (W * G, {"a": [3, -4], "b": 1}),
        (W * torch.tensor(3.0), {"a": [9, 12], "b": 6}),
        (W / 2, {"a": [1.5, 2], "b": 1}),
        (W - 0.5 * G, {"a": [2.5, 4.5], "b": 1.75}),
        (W.zeros(), {"a": [0, 0], "b": 0}),
        (W.map(torch.neg), {"a": [-3, -4], "b": -2}),
        (W.zip(G, torch.maximum), {"a": [3, 4], "b": 2}),
        (step(W, G, 0.1), {"a": [2.9, 4.1], "b": 1.95}),
    ],
)
def test_arithmetic(found: Params, wanted: dict[str, object]) -> None:
    assert plain(found) == {k: pytest.approx(v) for k, v in wanted.items()}


def test_norms() -> None:
    assert W.dot(G).item() == 3 - 4 + 1
    assert W.sq_norm().item() == 9 + 16 + 4
    assert Params().sq_norm().item() == 0
    assert W.numel() == 3
    assert Params().numel() == 0


def test_names_must_agree() -> None:
    for combine in (Params.__add__, Params.__sub__, Params.dot, Params.__mul__):
        with pytest.raises(KeyError, match="names differ: \\['b', 'c'\\]"):
            combine(W, params(a=[1.0, 1.0], c=1.0))


def test_matched_by_name_never_by_position() -> None:
    assert plain(W + params(b=10.0, a=[0.0, 0.0])) == {"a": [3, 4], "b": 12}


def test_union_of_different_names_only() -> None:
    joined = params(a=1.0) | params(b=2.0)
    assert list(joined) == ["a", "b"]
    with pytest.raises(KeyError, match="named twice: \\['a'\\]"):
        _ = params(a=1.0) | params(a=1.0)


def test_select_and_restrict() -> None:
    p = params(**{"body.w": 1.0, "head.w": 2.0, "head.b": 3.0, "headless": 4.0})
    assert list(p.select("head.")) == ["head.w", "head.b"]
    assert list(p.select("")) == list(p)
    assert list(p.restrict(["head.b", "body.w"])) == ["head.b", "body.w"]
    with pytest.raises(KeyError, match="nothing"):
        p.restrict(["nothing"])


def test_immutable_and_apart_from_what_it_was_made_of() -> None:
    source = {"a": torch.tensor(1.0)}
    p = Params(source)
    source["b"] = torch.tensor(2.0)
    assert list(p) == ["a"]
    with pytest.raises(TypeError):
        p["a"] = torch.tensor(5.0)  # type: ignore[index]
    with pytest.raises(AttributeError):
        p.extra = 1  # type: ignore[attr-defined]


def test_looks_like_its_shapes() -> None:
    assert repr(W) == "Params(a: (2,), b: ())"


def test_gradients_flow_through() -> None:
    w = Params(a=torch.tensor([3.0], requires_grad=True))
    (w * 2).sq_norm().backward()
    grad = w["a"].grad
    assert grad is not None
    assert grad.item() == 8 * 3


def test_gradient_of_a_function() -> None:
    """d/da (a . a + 3 b) = 2 a, d/db = 3; the point itself gets no gradient."""
    found = gradient(lambda p: p["a"].square().sum() + 3 * p["b"], W)
    assert plain(found) == {"a": [6, 8], "b": 3}
    assert W["a"].grad is None


def test_weighted_mean() -> None:
    """(1 w_1 + 3 w_2) / 4."""
    assert plain(mean([params(a=2.0), params(a=6.0)], [1, 3])) == {"a": 5}
    assert plain(mean([params(a=2.0), params(a=6.0)])) == {"a": 4}
    assert plain(mean(iter([params(a=2.0)]), iter([7]))) == {"a": 2}


def test_mean_of_counters_is_the_first() -> None:
    items = [Params(n=torch.tensor(k), m=torch.tensor([k % 2 == 0])) for k in (3, 8)]
    found = mean(items, [1, 5])
    assert found["n"].item() == 3
    assert found["n"].dtype == torch.int64
    assert found["m"].dtype == torch.bool


@pytest.mark.parametrize(("items", "weights"), [([], None), ([W], [0]), ([W, W], [1, -1])])
def test_mean_of_nothing(items: list[Params], weights: list[float] | None) -> None:
    with pytest.raises(ValueError, match="mean of nothing"):
        mean(items, weights)


def test_mean_needs_as_many_weights() -> None:
    with pytest.raises(ValueError, match="zip"):
        mean([W, G], [1.0])


def test_mean_leaves_its_items() -> None:
    a, b = params(a=2.0), params(a=6.0)
    found = mean([a, b])
    found["a"].add_(100)
    assert (a["a"].item(), b["a"].item()) == (2, 6)


numbers = st.floats(-1e3, 1e3, width=32)


@given(st.lists(st.tuples(numbers, st.integers(1, 50)), min_size=1, max_size=6))
def test_mean_is_that_of_arithmetic(parts: list[tuple[float, int]]) -> None:
    found = mean([params(a=x) for x, _ in parts], [n for _, n in parts])
    wanted = sum(x * n for x, n in parts) / sum(n for _, n in parts)
    assert found["a"].item() == pytest.approx(wanted, abs=1e-2, rel=1e-5)
    low, high = min(x for x, _ in parts), max(x for x, _ in parts)
    assert low - 1e-2 <= found["a"].item() <= high + 1e-2


@given(numbers, numbers, st.floats(-10, 10, width=32))
def test_vector_space(x: float, y: float, s: float) -> None:
    a, b = params(a=x), params(a=y)

    def same(p: Params, q: Params) -> bool:
        return torch.allclose(p["a"], q["a"], rtol=1e-4, atol=1e-1)

    assert same(a + b, b + a)
    assert same(s * (a + b), s * a + s * b)
    assert same((a - b) + b, a)


def test_types_are_kept() -> None:
    half: Tensor = Params(a=torch.ones(2, dtype=torch.bfloat16)).map(lambda t: t * 2)["a"]
    assert half.dtype == torch.bfloat16
    assert mean([Params(a=torch.ones(1, dtype=torch.float64))])["a"].dtype == torch.float64
