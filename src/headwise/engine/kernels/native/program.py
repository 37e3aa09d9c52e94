"""Describes a network to the native kernels: its layers with their sizes, and the addresses of their weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from ctypes import Structure, c_float, c_int32, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor, nn

from ....tasks.base import Link
from ..layers import layers_of

CONVOLUTION, LINEAR, MAXIMUM, AVERAGE = range(4)
KINDS = (nn.Conv2d, nn.Linear, nn.MaxPool2d, nn.AvgPool2d, nn.ReLU, nn.Flatten)
MOST = 64
"""maximum number of layers: LAYERS in chain.c"""
Shape = tuple[int, ...]


_SIZES = (
    *("kind", "relu", "trained", "pooled", "c", "h", "w", "oc", "oh", "ow", "kh", "kw", "sh", "sw", "ph", "pw"),
    *("mh", "mw", "msh", "msw", "mph", "mpw", "qh", "qw", "inside"),
)


class NativeLayer(Structure):
    """`Layer` of chain.h."""

    _fields_ = (
        *((name, c_int32) for name in _SIZES),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("strides", c_int64 * 4),
    )


class NativeRates(Structure):
    """`Rates` of chain.h."""

    _fields_ = (("lr", c_float), ("momentum", c_float), ("decay", c_float), ("clip", c_float))


LINKS: tuple[Link, ...] = ("softmax", "sigmoid", "identity")


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


class MisfitError(ValueError):
    """Samples of this shape do not fit the layers."""


def plain_layers(network: nn.Module) -> list[nn.Module] | None:
    """The layers; None unless the native kernels support all of them."""
    layers = layers_of(network, KINDS)
    if not layers or len(layers) > MOST or not all(map(_known, layers)):
        return None
    weights = weights_of(layers)
    usual = all(p.dtype is torch.float32 and p.device.type == "cpu" for p in weights)
    return layers if weights and usual and len(set(map(id, weights))) == len(weights) else None


def weights_of(layers: Sequence[nn.Module]) -> list[Tensor]:
    """All weights and biases; `parameters` would take several times as long."""
    return [p for layer in layers for p in layer._parameters.values() if p is not None]


def _known(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        usual = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
        return usual and not isinstance(layer.padding, str)
    if isinstance(layer, nn.MaxPool2d):
        return _pair(layer.dilation) == (1, 1) and not layer.return_indices
    if isinstance(layer, nn.AvgPool2d):
        return not layer.ceil_mode and layer.divisor_override is None
    return not isinstance(layer, nn.Linear) or layer.weight.is_contiguous()


def described(layers: Sequence[nn.Module], shape: Shape, learns: Callable[[Tensor], bool]) -> list[NativeLayer]:
    """The layers for samples of this shape.

    A ReLU is part of the layer before it, and so is max-pooling after a convolution.
    """
    found: list[NativeLayer] = []
    for layer in layers:
        if isinstance(layer, nn.Flatten):
            shape = (math.prod(shape),)
        elif isinstance(layer, nn.ReLU):
            if not found:
                found.append(_pool(nn.MaxPool2d(1), shape, MAXIMUM))
            found[-1].relu = 1
        elif isinstance(layer, nn.MaxPool2d) and found and found[-1].kind == CONVOLUTION and not found[-1].pooled:
            _attach(found[-1], _pool(layer, shape, MAXIMUM))
            shape = (shape[0], found[-1].qh, found[-1].qw)
        else:
            found.append(_made(layer, found, shape, learns))
            shape = _shape_behind(found[-1])
    if len(shape) != 1:
        raise MisfitError("the network's output is not a vector")
    return found


def _made(
    layer: nn.Module, before: Sequence[NativeLayer], shape: Shape, learns: Callable[[Tensor], bool]
) -> NativeLayer:
    if isinstance(layer, nn.Conv2d):
        return _convolution(layer, shape, learns)
    if isinstance(layer, (nn.MaxPool2d, nn.AvgPool2d)):
        return _pool(layer, shape, MAXIMUM if isinstance(layer, nn.MaxPool2d) else AVERAGE)
    assert isinstance(layer, nn.Linear)
    if shape != (layer.in_features,):
        raise MisfitError(f"a linear layer takes {layer.in_features} features, not {shape}")
    image = (shape[0], 1, 1) if not before else image_behind(before[-1])
    return _with_weights(NativeLayer(LINEAR, 0, 0, 0, *image, layer.out_features, 1, 1), layer, learns)


def _convolution(layer: nn.Conv2d, shape: Shape, learns: Callable[[Tensor], bool]) -> NativeLayer:
    if len(shape) != 3 or shape[0] != layer.in_channels:
        raise MisfitError(f"a convolution takes {layer.in_channels} channels, not {shape}")
    kernel, stride, padding = _pair(layer.kernel_size), _pair(layer.stride), _pair(layer.padding)
    out = _sizes(shape, kernel, stride, padding, False)
    made = NativeLayer(CONVOLUTION, 0, 0, 0, *shape, layer.out_channels, *out, *kernel, *stride, *padding)
    made.strides = (c_int64 * 4)(*layer.weight.stride())
    return _with_weights(made, layer, learns)


def _with_weights(made: NativeLayer, layer: nn.Conv2d | nn.Linear, learns: Callable[[Tensor], bool]) -> NativeLayer:
    made.trained = int(learns(layer.weight))
    made.weight = layer.weight.data_ptr()
    made.bias = None if layer.bias is None else layer.bias.data_ptr()
    return made


def _pool(layer: nn.MaxPool2d | nn.AvgPool2d, shape: Shape, kind: int) -> NativeLayer:
    if len(shape) != 3:
        raise MisfitError(f"pooling takes images, not {shape}")
    kernel, stride, padding = _pair(layer.kernel_size), _pair(layer.stride), _pair(layer.padding)
    out = _sizes(shape, kernel, stride, padding, layer.ceil_mode)
    made = NativeLayer(kind, 0, 0, 0, *shape, shape[0], *out, *kernel, *stride, *padding)
    made.inside = int(isinstance(layer, nn.AvgPool2d) and not layer.count_include_pad)
    return made


def _attach(made: NativeLayer, pool: NativeLayer) -> None:
    made.pooled = 1
    made.mh, made.mw, made.msh, made.msw = pool.kh, pool.kw, pool.sh, pool.sw
    made.mph, made.mpw, made.qh, made.qw = pool.ph, pool.pw, pool.oh, pool.ow


def flops_of(layers: Iterable[NativeLayer]) -> float:
    """FLOPs per step and sample: forward, and backward to trained weights and to inputs that need gradients."""
    found, reached = 0.0, False
    for layer in layers:
        outputs, window = layer.oc * layer.oh * layer.ow, layer.kh * layer.kw * layer.c
        if layer.kind == LINEAR:
            outputs, window = layer.oc, layer.c * layer.h * layer.w
        if layer.kind in (LINEAR, CONVOLUTION):
            found += 2.0 * outputs * window * (1 + layer.trained + reached)
        reached = reached or bool(layer.trained)
    return found


def image_behind(made: NativeLayer) -> tuple[int, int, int]:
    """Channels, height and width of a layer's output; a vector is one pixel."""
    return (made.oc, made.qh, made.qw) if made.pooled else (made.oc, made.oh, made.ow)


def _shape_behind(made: NativeLayer) -> Shape:
    return (made.oc,) if made.kind == LINEAR else image_behind(made)


def _sizes(shape: Shape, kernel: Shape, stride: Shape, padding: Shape, ceiling: bool) -> tuple[int, int]:
    """Output height and width; a last window that starts beyond the image does not count."""
    found: list[int] = []
    for size, k, s, p in zip(shape[1:], kernel, stride, padding, strict=True):
        out = (size + 2 * p - k + (s - 1 if ceiling else 0)) // s + 1
        found.append(out - 1 if ceiling and (out - 1) * s >= size + p else out)
    if min(found) < 1:
        raise MisfitError(f"a window of {kernel} does not fit into {shape}")
    return found[0], found[1]


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
