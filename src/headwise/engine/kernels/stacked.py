"""Plain SGD on fully connected layers for many clients at once, without autograd.

The clients' weights are stacked, ``[client, out, in]``, and one `bmm` per layer and step serves all of them. A client
gets the same numbers as alone: its batches are its own slices, short batches are padded with samples of weight zero,
and clients with fewer steps leave the stack when they are done. Layers are padded with zeros to whole cache lines, so
that every slice is aligned like the first: on many CPUs the last bits of a product depend on that.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...memory import LINE
from ...tasks.base import Dense, Objective
from .base import Feed, Kernel, Rates
from .layers import Layer
from .together import Work, ask


class Stacked(Kernel):
    """A client's plain SGD on a chain of layers, in step with other clients."""

    name: ClassVar[str] = "stacked"

    def __init__(self, chain: Sequence[Layer], rates: Rates, objective: Objective) -> None:
        self._chain, self._rates, self._objective = chain, rates, objective

    def train(self, feed: Feed) -> int:
        x, y, batches = feed.whole()
        rates, dense = self._rates, None if self._objective.usual else self._objective.dense(y)
        ask(Phase(self._chain, x, y, batches, rates.lr, rates.momentum, rates.weight_decay, dense))
        return len(batches)


@dataclass(frozen=True)
class Phase(Work):
    """One client's request: the weights of its chain are updated in place."""

    section: ClassVar[str] = f"training.{Stacked.name}"

    chain: Sequence[Layer]
    x: Tensor
    y: Tensor
    batches: Tensor
    """[steps, size]: the indices of each step's samples, short batches padded with -1"""
    lr: float
    momentum: float
    weight_decay: float
    dense: Dense | None = None
    """what the samples' scores should mean; none: `y` are classes, and the loss is their cross-entropy"""

    @cached_property
    def steps(self) -> int:
        return len(self.batches)

    @property
    def key(self) -> Hashable:
        """What must match: the layers, and all settings of the descent."""
        layers = [(s.weight.shape, s.weight.dtype, s.bias is None, s.relu, s.trained) for s in self.chain]
        link = None if self.dense is None else self.dense.link
        return tuple(layers), self.batches.shape[1], self.lr, self.momentum, self.weight_decay, link

    @torch.no_grad()
    def together(self, others: Sequence[Any]) -> None:
        """Train all phases, sorted by steps so that finished clients are at the end of the stack."""
        phases = sorted((p for p in (self, *others) if p.steps), key=lambda p: -p.steps)
        if not phases:
            return
        layers = [_Stack([p.chain[k] for p in phases], phases[0]) for k in range(len(phases[0].chain))]
        first = next(k for k, layer in enumerate(layers) if layer.trained)
        known = [p.dense for p in phases if p.dense is not None]
        ys = [_filled(d.targets) for d in known] or [p.y for p in phases]
        x, y, starts = _joined([_filled(p.x.flatten(1)) for p in phases], ys)
        steps = torch.tensor([p.steps for p in phases])
        rows, shares = _schedule(phases, steps, starts)
        told = _DenseSteps(known, y) if known else _ClassSteps(y.index_select(0, rows.flatten()).view(*rows.shape, 1))
        going = (steps.unsqueeze(1) > torch.arange(phases[0].steps)).sum(0).tolist()  # active clients per step
        for s, active in enumerate(going):
            if s and active < going[s - 1]:
                for layer in layers:
                    layer.narrow(active)
            i = rows[s, :active].flatten()
            inputs = [x.index_select(0, i).view(active, -1, x.shape[1])]
            for layer in layers:
                inputs.append(layer.forward(inputs[-1]))
            slope = told.slope(s, i, layers[-1].scores(inputs.pop(), told.filling), shares[s, :active])
            for k in range(len(layers) - 1, first - 1, -1):
                below = layers[k].backward(slope) if k > first else slope
                layers[k].step(slope, inputs[k])
                # after a ReLU the input is zero or positive, and its sign is the ReLU's gradient
                slope = below.mul_(inputs[k].sign_()) if k > first and layers[k - 1].relu else below
        for layer in layers:
            layer.write_back()


def _filled(t: Tensor) -> Tensor:
    """Padded with zeros to whole cache lines in every dimension but the first."""
    missing = [-size % (LINE // t.element_size()) for size in t.shape[:0:-1]]
    return pad(t, [n for each in missing for n in (0, each)]) if any(missing) else t


def _joined(xs: list[Tensor], ys: list[Tensor]) -> tuple[Tensor, Tensor, list[int]]:
    """All clients' samples and labels, and each client's offset; not copied if they are slices of one tensor."""
    (x, starts), (y, same) = _whole(xs), _whole(ys)
    if x is not None and y is not None and starts == same:
        return x, y, starts
    return torch.cat(xs), torch.cat(ys), [0, *accumulate(len(x) for x in xs[:-1])]


def _whole(parts: Sequence[Tensor]) -> tuple[Tensor | None, list[int]]:
    """The tensor that all of these are slices of, and their offsets; None if there is no such tensor."""
    first = parts[0]
    width, memory = math.prod(first.shape[1:]), first.untyped_storage()
    one = all(t.is_contiguous() and t.untyped_storage().data_ptr() == memory.data_ptr() for t in parts)
    if not one or any(t.storage_offset() % width for t in parts):
        return None, []
    count = memory.nbytes() // first.element_size() // width
    whole = first.as_strided((count, *first.shape[1:]), first.stride(), 0)
    return whole, [t.storage_offset() // width for t in parts]


def _schedule(phases: Sequence[Phase], steps: Tensor, starts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """For each step, client and place in the batch: the row of the joined data, and its share in the mean."""
    device = phases[0].batches.device
    batches = torch.cat([p.batches for p in phases])
    client = torch.arange(len(phases)).repeat_interleave(steps)
    step = torch.arange(len(batches)) - (steps.cumsum(0) - steps)[client]
    start = torch.tensor(starts)[client].unsqueeze(1).to(device)
    rows = batches.new_full((int(steps[0]), len(phases), batches.shape[1]), -1)
    rows[step.to(device), client.to(device)] = torch.where(batches < 0, -1, batches + start)
    filled = rows >= 0
    return rows.clamp_(min=0), (filled / filled.sum(2, keepdim=True).clamp_(min=1)).unsqueeze(-1)


def slope_of(scores: Tensor, y: Tensor, shares: Tensor) -> Tensor:
    """The gradient of the cross-entropy by the scores: (p - y) times each sample's share in its batch's mean.

    `torch.softmax` takes four times as long on few classes.
    """
    p = (scores - scores.amax(-1, keepdim=True)).exp_()
    return p.mul_(shares / p.sum(-1, keepdim=True)).scatter_add_(-1, y, -shares)


class _ClassSteps:
    """The labels of every step, [steps, clients, size, 1]."""

    filling = -math.inf

    def __init__(self, labels: Tensor) -> None:
        self._labels = labels

    def slope(self, step: int, rows: Tensor, scores: Tensor, shares: Tensor) -> Tensor:
        return slope_of(scores, self._labels[step, : len(scores)], shares)


class _DenseSteps:
    """The dense targets of all samples; those of a step are looked up when it comes."""

    def __init__(self, known: Sequence[Dense], targets: Tensor) -> None:
        weights = torch.cat([d.weights for d in known])
        self._whole = Dense(targets, _filled(weights) if weights.shape[1] > 1 else weights, known[0].link)
        self.filling = known[0].filling

    def slope(self, step: int, rows: Tensor, scores: Tensor, shares: Tensor) -> Tensor:
        targets, weights = (t.index_select(0, rows).view(*scores.shape[:2], -1) for t in self._whole[:2])
        return Dense(targets, weights, self._whole.link).slope(scores, shares)


class _Stack:
    """One layer of all clients. Weights are stored in the fastest order for products: the longer side contiguous."""

    def __init__(self, layers: Sequence[Layer], phase: Phase) -> None:
        self.relu, self.trained = layers[0].relu, layers[0].trained
        self._own_weights: list[Tensor] = [s.weight for s in layers]
        self._own_biases: list[Tensor] = [s.bias for s in layers if s.bias is not None]
        w = _filled(torch.stack(self._own_weights))  # [client, out, in]
        self._turned = w.shape[1] >= w.shape[2]
        self._w = w.mT.contiguous() if self._turned else w
        self._b = _filled(torch.stack(self._own_biases)).unsqueeze(1) if self._own_biases else None
        self._lr, self._momentum, self._decay = phase.lr, phase.momentum, phase.weight_decay
        self._velocity: dict[int, Tensor] = {}
        self.narrow(len(layers))

    def narrow(self, clients: int) -> None:
        """Continue with only the first `clients` of the stack."""
        self._going = self._w[:clients]
        self._weights = self._going if self._turned else self._going.mT  # [client, in, out]
        self._biases = None if self._b is None else self._b[:clients]

    def forward(self, h: Tensor) -> Tensor:
        z = torch.bmm(h, self._weights)
        if self._biases is not None:
            z.add_(self._biases)  # baddbmm would expand the biases first
        return z.relu_() if self.relu else z

    def scores(self, z: Tensor, filling: float) -> Tensor:
        """The last layer's output as scores: padding gets the score `filling`."""
        classes = len(self._own_weights[0])
        if classes < z.shape[2]:
            z[..., classes:] = filling
        return z

    def backward(self, slope: Tensor) -> Tensor:
        """The gradient of the layer's input."""
        return torch.bmm(slope, self._weights.mT)

    def step(self, slope: Tensor, h: Tensor) -> None:
        """w <- w - lr v, where v <- momentum v + (gradient + weight_decay w)."""
        if not self.trained:
            return
        left, right = (h, slope) if self._turned else (slope, h)
        if self._decay or self._momentum:
            self._move(0, self._going, torch.bmm(left.mT, right))
        else:
            self._going.baddbmm_(left.mT, right, alpha=-self._lr)
        if self._biases is not None:
            self._move(1, self._biases, slope.sum(1, keepdim=True))

    def _move(self, which: int, weights: Tensor, gradient: Tensor) -> None:
        if self._decay:
            gradient.add_(weights, alpha=self._decay)
        if self._momentum:
            if which not in self._velocity:
                self._velocity[which] = torch.zeros_like(gradient)
            gradient = self._velocity[which][: len(gradient)].mul_(self._momentum).add_(gradient)
        weights.add_(gradient, alpha=-self._lr)

    def write_back(self) -> None:
        """Copy the weights to the clients' own layers."""
        if not self.trained:
            return
        out, into = self._own_weights[0].shape
        for own, w in zip(self._own_weights, self._w.mT if self._turned else self._w, strict=True):
            own.copy_(w[:out, :into])
        if self._b is not None:
            for own, b in zip(self._own_biases, self._b.squeeze(1), strict=True):
                own.copy_(b[:out])
