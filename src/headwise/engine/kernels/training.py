"""The two kernels, native and plain, and the choice between them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ...tasks.base import Objective
from ...tasks.classification import CROSS_ENTROPY
from .native.autograd import fuse_steps
from .native.chain import Binding, native, train_chain
from .native.layers import chain_of, count_flops, weights_of
from .native.library import Library
from .optimizer import NativeRates, Optimizer, Rates, Terms

NO_TERMS = Terms()


class Feed(NamedTuple):
    """A client's training samples, in the two forms that kernels use."""

    batches: Callable[[], Iterator[tuple[Tensor, Tensor]]]
    """one batch after another, drawn lazily"""
    whole: Callable[[], tuple[Tensor, Tensor, Tensor]]
    """all samples and labels, and the indices of each step's batch: [steps, size], short batches padded with -1"""


class Kernel(ABC):
    """One phase of a client's training."""

    name: ClassVar[str]
    flops: float = 0.0
    """floating-point operations of the training, counting zero gradients too; 0 if the kernel does not count"""

    @abstractmethod
    def train(self, feed: Feed) -> int:
        """Train in place; return the steps taken."""


def choose(
    network: nn.Module,
    parts: Sequence[nn.Module],
    loss: Callable[[Tensor, Tensor], Tensor] | None,
    rates: Rates,
    *,
    models: Sequence[nn.Module],
    project: Callable[[], None] | None = None,
    fast: bool = True,
    objective: Objective = CROSS_ENTROPY,
    whole: bool = True,
    terms: Terms | None = None,
) -> Kernel:
    """The kernel for descent on `parts`, with the rest of `models` frozen.

    Without a `loss`, the objective's is used. The native kernel needs that, no projection, and a feed whose samples
    are the same in every step (`whole`). Everything else uses autograd.
    """
    usual = fast and loss is None and objective.flat and project is None
    if usual and whole and (kernel := NativeKernel.of(network, parts, rates, objective, terms or NO_TERMS)):
        return kernel
    optimizer = Optimizer([p for part in parts for p in part.parameters()], rates, terms)
    at_once = loss is None and project is None and terms is None and rates == Rates(rates.lr)
    loss = loss or (lambda x, y: objective.loss(network(x), y))
    return PlainKernel(models, parts, loss, optimizer, project, rates.lr if at_once else None)


@dataclass(eq=False)
class NativeKernel(Kernel):
    """Trains a network on the objective of its outputs, all steps of a phase in one call."""

    name: ClassVar[str] = "native"
    library: Library
    layers: Sequence[nn.Module]
    binding: Binding
    rates: NativeRates
    objective: Objective

    @staticmethod
    def of(
        network: nn.Module,
        parts: Sequence[nn.Module],
        rates: Rates,
        objective: Objective = CROSS_ENTROPY,
        terms: Terms = NO_TERMS,
    ) -> NativeKernel | None:
        """The kernel for this network; None unless it is a chain, some of it learns, and there is a library."""
        layers = chain_of(network)
        library = native().library
        if layers is None or library is None or not isinstance(layers[-1], nn.Linear):
            return None
        weights = {*map(id, weights_of(layers))}
        trained = weights if network in parts else {id(p) for part in parts for p in part.parameters()}
        if trained.isdisjoint(weights):
            return None
        binding = Binding(trained, anchor=terms.anchors, shift=terms.shifts)
        return NativeKernel(library, layers, binding, rates.native(terms.pull), objective)

    def train(self, feed: Feed) -> int:
        samples = feed.whole()
        batches = samples[2]
        if len(batches):
            chain = train_chain(self.library, self.layers, self.binding, self.rates, self.objective, samples)
            self.flops = count_flops(chain) * int((batches >= 0).sum())
        return len(batches)


@dataclass(eq=False)
class PlainKernel(Kernel):
    """Trains by autograd, batch by batch: any network and any loss, with an optional projection after each step."""

    name: ClassVar[str] = "plain"
    models: Sequence[nn.Module]
    parts: Sequence[nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]
    optimizer: Optimizer
    project: Callable[[], None] | None
    lr: float | None
    """for native convolutions that may step during the backward pass, because nothing else needs their gradients"""

    def train(self, feed: Feed) -> int:
        """Parts without weights take no steps."""
        if not self.optimizer.weights:
            return 0
        steps = 0
        with train_only(self.models, self.parts):
            for x, y in feed.batches():
                with fuse_steps(self.lr):
                    self.optimizer.step(self.loss(x, y))
                if self.project is not None:
                    with torch.no_grad():
                        self.project()
                steps += 1
        return steps


@contextmanager
def train_only(models: Sequence[nn.Module], parts: Sequence[nn.Module]) -> Iterator[None]:
    """Only `parts` get gradients. All modules are in evaluation mode, so that running statistics don't change."""
    for m in models:
        m.eval().requires_grad_(False)
    for part in parts:
        part.requires_grad_(True)
    try:
        yield
    finally:
        for m in models:
            m.eval().requires_grad_(True)
