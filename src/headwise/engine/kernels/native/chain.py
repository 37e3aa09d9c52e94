"""Trains a chain of layers and predicts with it, in C; before its first use, the library is compared with torch."""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Collection, Mapping, Sequence
from ctypes import Array, Structure, addressof, byref, c_int32, c_int64, c_void_p
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ....memory import address
from ....tasks.base import Link, Objective
from ....tasks.classification import CROSS_ENTROPY
from ..optimizer import NativeRates
from .layers import IMAGE, LAYERS, VECTOR, NativeLayer, chain_of, describe
from .library import LIMIT, Library, Lookup, find

ROWS = 32
"""samples per prediction pass; bits do not depend on it"""
CLOSE = 1e-5
"""the largest difference to torch's weights that is accepted"""
LINKS: tuple[Link, ...] = ("softmax", "sigmoid", "identity")
_own = threading.local()


class NativeGoal(Structure):
    """`Goal` of chain.h."""

    _fields_ = (
        *(("link", c_int32), ("wide", c_int32)),
        *((name, c_void_p) for name in ("classes", "targets", "weights")),
    )


class NativePhase(Structure):
    """`Phase` of chain.h."""

    _fields_ = (
        *((name, c_void_p) for name in ("layers", "rates", "goal", "x", "batches")),
        *(("samples", c_int64), ("steps", c_int64), ("count", c_int32), ("size", c_int32), ("bad", c_int64)),
    )


class Binding:
    """Tells C where the weights of layers are, which of them learn, and where arrays are that belong to them.

    `trained` are ids of weights, `values` tensors by the id of the weight in whose place they are used. `arrays` has
    fields of `NativeLayer`, and for each a tensor by the id of its weight.
    """

    def __init__(
        self,
        trained: Collection[int] = (),
        values: Mapping[int, Tensor] = MappingProxyType({}),
        **arrays: Mapping[int, Tensor],
    ) -> None:
        self._trained = trained
        self._values = values
        self._arrays = arrays
        self._copies: list[Tensor] = []
        """what C refers to must live as long as this"""

    def __call__(self, made: NativeLayer, layer: nn.Module) -> None:
        weight, bias = (layer._parameters.get(name) for name in ("weight", "bias"))
        if weight is not None:
            made.trained = int(id(weight) in self._trained)
            made.weight = self._address(weight)
        if bias is not None:
            made.bias = self._address(bias)
        for field, tensors in self._arrays.items():
            for name, w in ((field, weight), (f"bias_{field}", bias)):
                if w is not None and (t := tensors.get(id(w))) is not None:
                    setattr(made, name, self._like(t, w))

    def _address(self, weight: Tensor) -> int:
        value = self._values.get(id(weight))
        return weight.data_ptr() if value is None else self._like(value, weight)

    def _like(self, t: Tensor, weight: Tensor) -> int:
        """The address of the tensor, or of a copy, with the layout of the weight."""
        if t.dtype is not weight.dtype or t.stride() != weight.stride() or t.device != weight.device:
            t = torch.empty_strided(weight.shape, weight.stride(), dtype=weight.dtype).copy_(t)
        self._copies.append(t)
        return address(t)


def train_chain(
    library: Library,
    layers: Sequence[nn.Module],
    binding: Binding,
    rates: NativeRates,
    objective: Objective,
    samples: tuple[Tensor, Tensor, Tensor],
) -> Array[NativeLayer]:
    """Take all steps of a phase in one call, in place; return the layers as C got them.

    `samples` is what `Feed.whole` returns.
    """
    x = samples[0]
    y = samples[1]
    batches = samples[2].contiguous()
    x, chain = lay_out(layers, x, binding)
    goal, tensors = _goal(objective, y, len(x), chain[-1].oc)
    steps, size = batches.shape
    pointers = (*map(addressof, (chain, rates, goal)), address(x), address(batches))
    phase = NativePhase(*pointers, len(x), steps, len(chain), size)
    memory = scratch(library.bytes(chain, len(chain), size, byref(rates)))
    library.train(byref(phase), 1, memory)
    del tensors  # the goal refers to them
    if phase.bad >= 0:
        raise IndexError(f"sample {phase.bad} of {len(x)} does not exist, or its label is not a class")
    return chain


def _goal(objective: Objective, y: Tensor, samples: int, outputs: int) -> tuple[NativeGoal, tuple[Tensor, ...]]:
    """The goal of the outputs, and the tensors that it refers to, which must live as long as it does."""
    if objective.is_plain:
        y = y.long().contiguous()
        return NativeGoal(classes=address(y)), (y,)
    dense = objective.dense(y)
    targets = dense.targets.float().contiguous()
    weights = dense.weights.float().contiguous()
    if targets.shape != (samples, outputs):
        raise ValueError(f"targets are {tuple(targets.shape)}, but must be {(samples, outputs)}")
    goal = NativeGoal(LINKS.index(dense.link), weights.shape[1], None, address(targets), address(weights))
    return goal, (targets, weights)


def predict(network: nn.Module, x: Tensor) -> Tensor | None:
    """The network's output for all rows of `x`; None unless it is a chain and there is a library."""
    layers = None if x.dtype is not torch.float32 or x.device.type != "cpu" else chain_of(network)
    library = native().library if layers else None
    if layers is None or library is None:
        return None
    x, chain = lay_out(layers, x, Binding())
    out = x.new_empty(len(x), math.prod(chain[-1].image))
    rows = max(1, min(ROWS, len(x)))
    memory = scratch(library.bytes(chain, len(chain), rows, None))
    library.predict(chain, len(chain), address(x), len(x), rows, out.data_ptr(), memory)
    return out


def lay_out(layers: Sequence[nn.Module], x: Tensor, binding: Binding) -> tuple[Tensor, Array[NativeLayer]]:
    """The samples as the kernels read them (images channels-last), and the layers for their shape."""
    if x.dtype is not torch.float32 or x.device.type != "cpu":
        raise TypeError(f"samples are {x.dtype} on {x.device}, but the network's weights are float32 on the CPU")
    chain = describe(layers, tuple(x.shape[1:]), binding)
    x = x.permute(0, 2, 3, 1) if x.dim() == 4 and LAYERS[type(layers[0])].place in (IMAGE, None) else x
    return x.contiguous(), (NativeLayer * len(chain))(*chain)


def scratch(size: int) -> int:
    """The address of `size` bytes for this thread, valid until its next call."""
    if size < 0:
        raise ValueError("a chain has too many layers")
    known: Tensor | None = getattr(_own, "memory", None)
    if known is None or known.numel() < size:
        known = _own.memory = torch.empty(size, dtype=torch.uint8)
    return known.data_ptr()


def native() -> Lookup:
    """The library, if it agrees with torch."""
    return _check(os.environ.get(LIMIT, ""))


@cache
def _check(limit: str) -> Lookup:
    lookup = find(limit)
    if lookup.library is None or (off := difference(lookup.library)) <= CLOSE:
        return lookup
    why = f"its {lookup.library.build} kernels are off by {off:.1g} from torch's"
    logging.getLogger("headwise").warning(f"the native library is not used: {why}.")
    return Lookup(None, why)


def difference(library: Library) -> float:
    """The largest difference to autograd's weights after two training steps of a network with every kind of layer."""
    ours = _example_network()
    theirs = _example_network()
    x = _waves(5, 2, 17, 16)
    y = torch.arange(5) % 17
    lr = 0.1
    batches = torch.tensor([[3, 0, 4], [1, 2, -1]])
    weights = [p for layer in theirs for p in layer.parameters()]
    trained = {id(p) for layer in ours for p in layer.parameters()}
    train_chain(library, ours, Binding(trained), NativeRates(lr), CROSS_ENTROPY, (x, y, batches))
    with torch.enable_grad():
        for i in (batches[0], batches[1, :2]):
            loss = cross_entropy(nn.Sequential(*theirs)(x[i]), y[i])
            for p, g in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                p.data.sub_(g, alpha=lr)
    trained_by_us = [p for layer in ours for p in layer.parameters()]
    worst = torch.stack([(a - b).abs().max() for a, b in zip(trained_by_us, weights, strict=True)]).max().item()
    return worst if worst == worst else float("inf")


@torch.no_grad()
def _example_network() -> list[nn.Module]:
    """A fixed network of the table's examples: those on images twice, the second time in reverse order."""
    images = [kind for kind, row in LAYERS.items() if row.place in (IMAGE, None)]
    vectors = [kind for kind, row in LAYERS.items() if row.place == VECTOR]
    layers: list[nn.Module] = []
    x = torch.zeros(1, 2, 17, 16)
    for kind in (*images, *reversed(images), nn.Flatten, *vectors, nn.ReLU, *vectors):
        layers.append(_make_undrawn(kind, *LAYERS[kind].example(tuple(x.shape[1:]))))
        for p in layers[-1].parameters():
            p.copy_(_waves(*p.shape) / 3)
        x = layers[-1](x)
    return layers


def _make_undrawn(kind: type[nn.Module], *arguments: Any) -> nn.Module:
    """A layer whose weights are not drawn: other threads may be using torch's generator."""
    layer: Any = type(kind.__name__, (kind,), {"reset_parameters": lambda _: None})(*arguments)
    layer.__class__ = kind
    return layer


def _waves(*shape: int) -> Tensor:
    return torch.arange(1, 1 + torch.Size(shape).numel(), dtype=torch.float32).sin().view(shape)
