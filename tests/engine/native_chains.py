"""Chains for the tests of the native kernels, and what trains them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from headwise.engine.kernels.native import library
from headwise.engine.kernels.native.chain import native
from headwise.engine.kernels.native.library import LIMIT, find
from headwise.engine.kernels.optimizer import Optimizer, Rates, Terms
from headwise.engine.kernels.training import Feed, NativeKernel
from headwise.tasks.base import Objective
from headwise.tasks.classification import CROSS_ENTROPY

BUILDS = [name for name in library.builds() if find(name).library]
"""that this CPU can run; none where there is no library"""


def learned(
    network: nn.Module,
    parts: Sequence[nn.Module],
    feed: Feed,
    rates: Rates,
    name: str,
    objective: Objective = CROSS_ENTROPY,
    terms: NamedTerms | None = None,
) -> dict[str, Tensor]:
    """The state of a copy of the network after the native kernels of this build have trained it."""
    twin = copy.deepcopy(network)
    paths = {id(m): path for path, m in network.named_modules()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(LIMIT, name)
        kernel = NativeKernel.of(
            twin, [twin.get_submodule(paths[id(part)]) for part in parts], rates, objective, terms_of(twin, terms)
        )
        assert kernel is not None, native()
        kernel.train(feed)
    return twin.state_dict()


def taught(
    network: nn.Module,
    parts: Sequence[nn.Module],
    feed: Feed,
    rates: Rates,
    objective: Objective = CROSS_ENTROPY,
    terms: NamedTerms | None = None,
) -> dict[str, Tensor]:
    """The same by autograd in double precision, with the steps of `Optimizer`."""
    twin = copy.deepcopy(network).double()
    paths = {id(m): path for path, m in network.named_modules()}
    weights = [p for part in parts for p in twin.get_submodule(paths[id(part)]).parameters()]
    optimizer = Optimizer(weights, rates, terms_of(twin, terms))
    x, y, batches = feed.whole()
    for row in batches:
        i = row[row >= 0]
        optimizer.step(objective.loss(twin(x[i].double()), y[i]))
    return twin.state_dict()


NamedTerms = tuple[float, dict[str, Tensor], dict[str, Tensor]]
"""a pull, and anchors and shifts by the names of weights"""


def terms_of(network: nn.Module, terms: NamedTerms | None) -> Terms:
    own = dict(network.named_parameters())
    pull, anchors, shifts = terms or (0.0, {}, {})
    return Terms(pull, {id(own[k]): t for k, t in anchors.items()}, {id(own[k]): t for k, t in shifts.items()})


def feed_of(x: Tensor, y: Tensor, batches: Tensor) -> Feed:
    return Feed(lambda: iter([(x[i[i >= 0]], y[i[i >= 0]]) for i in batches]), lambda: (x, y, batches))


def some_feed(shape: Sequence[int], classes: int, *, samples: int = 7, batch: int = 4, last: int = 3) -> Feed:
    """Two batches of random samples, the second a short one."""
    rng = torch.Generator().manual_seed(3)
    x, y = torch.randn(samples, *shape, generator=rng), torch.randint(classes, (samples,), generator=rng)
    if len(shape) == 3:
        x = x.contiguous(memory_format=torch.channels_last)
    rows = [torch.randperm(samples, generator=rng)[:batch] for _ in range(2)]
    rows[1][last:] = -1
    return feed_of(x, y, torch.stack(rows))


@st.composite
def chains(draw: Any) -> tuple[nn.Sequential, tuple[int, ...], int]:
    """Any chain of small layers, the shape of its samples, and its classes."""
    start = (draw(st.integers(1, 3)), draw(st.integers(4, 11)), draw(st.integers(4, 11)))
    layers: list[nn.Module] = []
    kinds = draw(st.lists(st.sampled_from("ccmar"), max_size=4))
    for kind in kinds if {*kinds} != {"r"} else ():  # a ReLU alone may be one of vectors
        layers.append(_layer(draw, kind, _behind(layers, start)))
    layers.append(nn.Flatten())
    for _ in range(draw(st.integers(0, 2))):
        layers.append(nn.Linear(_behind(layers, start)[0], draw(st.integers(1, 40)), bias=draw(st.booleans())))
        layers.extend([nn.ReLU()] if draw(st.booleans()) else [])
    classes = draw(st.integers(1, 20))
    return nn.Sequential(*layers, nn.Linear(_behind(layers, start)[0], classes)), start, classes


def _behind(layers: Sequence[nn.Module], start: tuple[int, ...]) -> tuple[int, ...]:
    with torch.no_grad():
        return tuple(nn.Sequential(*layers)(torch.zeros(1, *start)).shape[1:])


def _layer(draw: Any, kind: str, shape: tuple[int, ...]) -> nn.Module:
    if kind == "r":
        return nn.ReLU()
    kernel = (draw(st.integers(1, min(shape[1], 4))), draw(st.integers(1, min(shape[2], 5))))
    stride = (draw(st.integers(1, 3)), draw(st.integers(1, 2)))
    if kind == "c":
        padding = (draw(st.integers(0, 2)), draw(st.integers(0, 2)))
        out = draw(st.sampled_from([1, 5, 8, 16, 18, 33]))
        return nn.Conv2d(shape[0], out, kernel, stride, padding, bias=draw(st.booleans()))
    padding = (draw(st.integers(0, kernel[0] // 2)), draw(st.integers(0, kernel[1] // 2)))
    if kind == "m":
        return nn.MaxPool2d(kernel, stride, padding, ceil_mode=draw(st.booleans()))
    return nn.AvgPool2d(kernel, stride, padding, count_include_pad=draw(st.booleans()))
