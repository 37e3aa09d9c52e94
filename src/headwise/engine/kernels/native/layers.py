"""The layers that the native kernels support, a row each: allowed settings, C description, cost, and an example.

To add a layer, add a row here and its functions to `KINDS` in chain.c.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import Structure, c_int32, c_int64, c_void_p
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ....models.split import SplitModel

CONVOLUTION, LINEAR, MAXIMUM, AVERAGE = range(4)
"""the order of `KINDS` in chain.c"""
IMAGE, FLATTEN, VECTOR = range(3)
"""where layers stand in a chain: those on images, then flattening, then those on vectors"""
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
        *((name, c_void_p) for name in ("anchor", "bias_anchor", "shift", "bias_shift", "slope", "bias_slope")),
    )

    @property
    def image(self) -> tuple[int, int, int]:
        """Channels, height and width of its output; a vector is one pixel."""
        return (self.oc, self.qh, self.qw) if self.pooled else (self.oc, self.oh, self.ow)


class MisfitError(ValueError):
    """Samples of this shape do not fit the layers."""


def _convolution(layer: nn.Conv2d, shape: Shape, before: NativeLayer | None) -> NativeLayer:
    if len(shape) != 3 or shape[0] != layer.in_channels:
        raise MisfitError(f"a convolution takes {layer.in_channels} channels, not {shape}")
    made = _window_layer(CONVOLUTION, layer, shape, layer.out_channels)
    made.strides = (c_int64 * 4)(*layer.weight.stride())
    return made


def _linear(layer: nn.Linear, shape: Shape, before: NativeLayer | None) -> NativeLayer:
    if shape != (layer.in_features,):
        raise MisfitError(f"a linear layer takes {layer.in_features} features, not {shape}")
    image = (shape[0], 1, 1) if before is None else before.image
    return NativeLayer(LINEAR, 0, 0, 0, *image, layer.out_features, 1, 1)


def _maximum(layer: nn.MaxPool2d, shape: Shape, before: NativeLayer | None) -> NativeLayer | None:
    """Part of the convolution before it, if there is one."""
    made = _window_layer(MAXIMUM, layer, shape, shape[0], ceiling=layer.ceil_mode)
    if before is None or before.kind != CONVOLUTION or before.pooled:
        return made
    before.pooled = 1
    before.mh = made.kh
    before.mw = made.kw
    before.msh = made.sh
    before.msw = made.sw
    before.mph = made.ph
    before.mpw = made.pw
    before.qh = made.oh
    before.qw = made.ow
    return None


def _average(layer: nn.AvgPool2d, shape: Shape, before: NativeLayer | None) -> NativeLayer:
    made = _window_layer(AVERAGE, layer, shape, shape[0])
    made.inside = int(not layer.count_include_pad)
    return made


def _relu(layer: nn.ReLU, shape: Shape, before: NativeLayer | None) -> NativeLayer | None:
    """Part of the layer before it; at the beginning, of one that does nothing else."""
    made = _maximum(nn.MaxPool2d(1), shape, None) if before is None else None
    (made or before).relu = 1  # pyright: ignore[reportOptionalMemberAccess]
    return made


def _window_layer(kind: int, layer: Any, shape: Shape, channels: int, *, ceiling: bool = False) -> NativeLayer:
    """A layer that moves a window over images; one that would start beyond the image does not count."""
    if len(shape) != 3:
        raise MisfitError(f"pooling takes images, not {shape}")
    kernel = _pair(layer.kernel_size)
    stride = _pair(layer.stride)
    padding = _pair(layer.padding)
    out: list[int] = []
    for size, k, s, p in zip(shape[1:], kernel, stride, padding, strict=True):
        count = (size + 2 * p - k + (s - 1 if ceiling else 0)) // s + 1
        out.append(count - 1 if ceiling and (count - 1) * s >= size + p else count)
    if min(out) < 1:
        raise MisfitError(f"a window of {kernel} does not fit into {shape}")
    return NativeLayer(kind, 0, 0, 0, *shape, channels, *out, *kernel, *stride, *padding)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


class LayerType(NamedTuple):
    kind: int | None
    """its number in chain.c; None: C knows it only as part of another layer"""
    place: int | None
    """IMAGE, FLATTEN or VECTOR; None: on images and on vectors, as part of the layer before"""
    describe: Callable[[Any, Shape, NativeLayer | None], NativeLayer | None]
    """the layer for inputs of this shape; None if it became part of the layer before, or is only a change of shape"""
    fits: Callable[[Any], bool]
    """whether the kernels support its settings"""
    example: Callable[[Shape], tuple[Any, ...]]
    """its arguments in the network by which the kernels are checked"""
    products: Callable[[NativeLayer], int] = lambda _: 0
    """multiplications per sample of a pass forward; to weights and to inputs there are as many"""


LAYERS: Mapping[type[nn.Module], LayerType] = {
    nn.Conv2d: LayerType(
        CONVOLUTION,
        IMAGE,
        _convolution,
        lambda m: (m.groups, m.dilation, m.padding_mode) == (1, (1, 1), "zeros") and not isinstance(m.padding, str),
        lambda shape: (shape[0], shape[0] + 3, (3, 2), 1, 1),
        lambda m: m.oc * m.oh * m.ow * m.kh * m.kw * m.c,
    ),
    nn.MaxPool2d: LayerType(
        MAXIMUM, IMAGE, _maximum, lambda m: _pair(m.dilation) == (1, 1) and not m.return_indices, lambda _: (2,)
    ),
    nn.ReLU: LayerType(None, None, _relu, lambda _: True, lambda _: ()),
    nn.AvgPool2d: LayerType(
        AVERAGE, IMAGE, _average, lambda m: not m.ceil_mode and m.divisor_override is None, lambda _: (2, 1)
    ),
    nn.Flatten: LayerType(None, FLATTEN, lambda *_: None, lambda m: (m.start_dim, m.end_dim) == (1, -1), lambda _: ()),
    nn.Linear: LayerType(
        LINEAR,
        VECTOR,
        _linear,
        lambda m: m.weight.is_contiguous(),
        lambda shape: (shape[0], 17),
        lambda m: m.oc * m.c * m.h * m.w,
    ),
}


def chain_of(network: nn.Module) -> list[nn.Module] | None:
    """The layers in forward order; None unless the kernels support all of them, and their order."""
    layers = _layers_of(network)
    if not layers or len(layers) > MOST or not _is_ordered([LAYERS[type(m)].place for m in layers]):
        return None
    weights = weights_of(layers)
    usual = all(p.dtype is torch.float32 and p.device.type == "cpu" for p in weights)
    return layers if weights and usual and len(set(map(id, weights))) == len(weights) else None


def _layers_of(module: nn.Module) -> list[nn.Module] | None:
    if has_hooks(module):
        return None
    if type(module) is nn.Identity:
        return []
    if row := LAYERS.get(type(module)):
        return [module] if row.fits(module) else None
    if type(module) not in (nn.Sequential, SplitModel):
        return None
    layers: list[nn.Module] = []
    for child in module._modules.values():
        inner = [] if child is None else _layers_of(child)
        if inner is None:
            return None
        layers += inner
    return layers


def has_hooks(module: nn.Module) -> bool:
    """Whether the module has hooks, which see its inputs or outputs."""
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    return any(hooks)


def _is_ordered(places: Sequence[int | None]) -> bool:
    """Whether images come before flattening before vectors, with no ReLU directly after flattening."""
    first = next((place for place in places if place is not None), None)
    if first is None or (places[0] is None and first != IMAGE):
        return False
    now = IMAGE if first == IMAGE else FLATTEN
    for place in places:
        if (place is None and now == FLATTEN) or (place is not None and not now <= place <= now + 1):
            return False
        now = now if place is None else place
    return now != IMAGE


def weights_of(layers: Sequence[nn.Module]) -> list[Tensor]:
    """All weights and biases; `parameters` would take several times as long."""
    return [p for layer in layers for p in layer._parameters.values() if p is not None]


Bind = Callable[[NativeLayer, nn.Module], None]
"""tells C where the weights of a layer are"""


def describe(layers: Sequence[nn.Module], shape: Shape, bind: Bind) -> list[NativeLayer]:
    """The layers for samples of this shape."""
    chain: list[NativeLayer] = []
    for layer in layers:
        row = LAYERS[type(layer)]
        made = row.describe(layer, shape, chain[-1] if chain else None)
        if row.place == FLATTEN:
            shape = (math.prod(shape),)
            continue
        if made is not None:
            chain.append(made)
            bind(made, layer)
        shape = (chain[-1].oc,) if chain[-1].kind == LINEAR else chain[-1].image
    if len(shape) != 1:
        raise MisfitError("the network's output is not a vector")
    return chain


def count_flops(chain: Iterable[NativeLayer]) -> float:
    """FLOPs per step and sample: forward, and backward to trained weights and to inputs that need gradients."""
    products = {row.kind: row.products for row in LAYERS.values()}
    flops = 0.0
    reached = False
    for layer in chain:
        flops += 2.0 * products[layer.kind](layer) * (1 + layer.trained + reached)
        reached = reached or bool(layer.trained)
    return flops
