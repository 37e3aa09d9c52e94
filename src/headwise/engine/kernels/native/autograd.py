"""The native kernels under torch's autograd, so that networks run natively whatever the loss.

`NativeForward` runs a body that is a chain in one call. In networks that are not chains, such as residual ones,
`NativeConvolution` runs each convolution by itself, between torch's layers. Where neither can, torch computes.
"""

from __future__ import annotations

import copy
import math
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import byref
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import conv2d

from ....memory import address
from .chain import Binding, lay_out, native, predict, scratch
from .layers import LAYERS, NativeLayer, chain_of, has_hooks, weights_of
from .library import Library

LARGEST = 2**31
"""gradients by the output are counted with 32 bits"""
_own = threading.local()


def accelerate(body: nn.Module) -> None:
    """Let the convolutions of a model's body run natively, even under a method's own loss."""
    if chain_of(body):
        NativeForward.install(body)
    else:
        NativeConvolution.install(body)


def without_acceleration(network: nn.Module) -> nn.Module:
    """The network with torch's layers only, which can be traced and pickled anywhere; a copy if it has others."""
    if not any(map(_is_accelerated, network.modules())):
        return network
    plain = copy.deepcopy(network)
    for module in filter(_is_accelerated, plain.modules()):
        del module.forward
    return plain


def _is_accelerated(module: nn.Module) -> bool:
    return isinstance(vars(module).get("forward"), _Replacement)


class _Replacement:
    """Replaces a module's forward pass; a copy of the module gets one of its own."""

    def __init__(self, module: nn.Module) -> None:
        self._module = weakref.ref(module)

    @property
    def module(self) -> Any:
        module = self._module()
        assert module is not None  # it is what calls this
        return module

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)(memo[id(self._module())])


class NativeForward(_Replacement):
    """The forward pass of a body that is a chain."""

    @staticmethod
    def install(body: nn.Module) -> None:
        """Replace the body's forward pass, if it is a chain with convolutions: others gain nothing."""
        if native().library and any(type(m) is nn.Conv2d for m in body.modules()) and chain_of(body):
            body.forward = NativeForward(body)

    def __call__(self, x: Tensor) -> Tensor:
        body = self.module
        layers = chain_of(body)
        if layers is None or not _is_plain(x):
            return type(body).forward(body, x)
        weights = weights_of(layers)
        if not torch.is_grad_enabled() or not any(w.requires_grad for w in weights):
            outputs = predict(body, x)
            return type(body).forward(body, x) if outputs is None else outputs
        outputs = _run_chain(layers, weights, x)
        return type(body).forward(body, x) if outputs is None else outputs

    def call_with(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor | None:
        """`functional_call` in less time: the output with these weights, by name; None where the kernels can't."""
        body = self.module
        layers = chain_of(body)
        if layers is None or not _is_plain(x) or not torch.is_grad_enabled():
            return None
        given = [weights.get(name, p) for name, p in body.named_parameters()]  # in the order of the layers
        return _run_chain(layers, given, x) if all(map(_is_weight, given)) else None


def _is_plain(x: Tensor) -> bool:
    """Whether the kernels can read these samples, and nobody needs a gradient by them."""
    usual = type(x) is Tensor and x.dtype is torch.float32 and x.device.type == "cpu"
    return usual and not x.requires_grad and len(x) > 0 and not _transforms_are_active()


def _transforms_are_active() -> bool:
    """Whether `torch.func` is tracing: its `grad` and `vmap` only know torch's own operations."""
    return torch._C._are_functorch_transforms_active()  # pyright: ignore[reportAttributeAccessIssue]


def _is_weight(w: Tensor) -> bool:
    return type(w) in (Tensor, nn.Parameter) and w.dtype is torch.float32 and w.device.type == "cpu"


def _run_chain(layers: Sequence[nn.Module], weights: Sequence[Tensor], x: Tensor) -> Tensor | None:
    """The output as a function of the weights; None without a library, or where only a part of a layer learns."""
    library = native().library
    left = iter(weights)
    for layer in layers:
        learns = {next(left).requires_grad for p in layer._parameters.values() if p is not None}
        if len(learns) > 1:
            return None
    return None if library is None else _Chain.apply(library, layers, x, *weights)  # pyright: ignore[reportReturnType]


class _Chain(torch.autograd.Function):
    """A chain's output as a function of its weights, by the native kernels."""

    @staticmethod
    def forward(ctx: Any, library: Library, layers: Sequence[nn.Module], x: Tensor, *weights: Tensor) -> Tensor:
        needed = ctx.needs_input_grad[3:]
        own = weights_of(layers)  # in their layout, whatever that of the given ones
        slopes = [torch.empty_strided(w.shape, w.stride()) if n else None for w, n in zip(own, needed, strict=True)]
        ids = [id(w) for w in own]
        binding = Binding(
            {i for i, n in zip(ids, needed, strict=True) if n},
            dict(zip(ids, weights, strict=True)),
            slope={i: s for i, s in zip(ids, slopes, strict=True) if s is not None},
        )
        rows, chain = lay_out(layers, x, binding)
        out = rows.new_empty(len(rows), math.prod(chain[-1].image))
        memory = torch.empty(library.kept(chain, len(chain), len(rows)), dtype=torch.uint8)
        library.forward(chain, len(chain), address(rows), len(rows), out.data_ptr(), memory.data_ptr())
        ctx.save_for_backward(x, *weights)
        ctx.layers = layers
        ctx.native = library, memory, slopes, (chain, binding)  # the memory refers to both
        return out

    @staticmethod
    def backward(ctx: Any, *by_output: Tensor) -> Any:
        """A second pass back, and second derivatives, are torch's, of the same chain."""
        (slope,) = by_output
        x, *weights = ctx.saved_tensors
        if torch.is_grad_enabled() or ctx.native is None:
            return None, None, None, *_differentiate_chain(ctx.layers, x, weights, ctx.needs_input_grad[3:], slope)
        library, memory, slopes, _ = ctx.native
        slope = slope.contiguous()
        library.backward(address(slope), len(x), memory.data_ptr())
        ctx.native = None
        return None, None, None, *slopes


def _differentiate_chain(
    layers: Sequence[nn.Module], x: Tensor, weights: Sequence[Tensor], needed: Sequence[bool], slope: Tensor
) -> list[Tensor | None]:
    """The gradients, as functions of the weights if they are to be differentiated once more."""
    again = torch.is_grad_enabled()
    left = iter(weights)
    out = x
    with torch.enable_grad():
        for layer in layers:
            own = {name: next(left) for name, p in layer._parameters.items() if p is not None}
            out = functional_call(layer, own, (out,))
        moving = [w for w, n in zip(weights, needed, strict=True) if n]
        gradients = iter(torch.autograd.grad(out, moving, slope, create_graph=again))
    return [next(gradients) if n else None for n in needed]


class FusedSteps:
    """The steps that convolutions take during one pass back, instead of returning gradients."""

    def __init__(self, lr: float) -> None:
        self.lr = lr
        self._uses: dict[int, int] = {}

    def count_use(self, weight: Tensor) -> None:
        self._uses[id(weight)] = self._uses.get(id(weight), 0) + 1

    def may_take(self, weight: Tensor) -> bool:
        """Whether the weight was used only once: a second use must not see the weight after the first one's step."""
        return self._uses.get(id(weight)) == 1


@contextmanager
def fuse_steps(lr: float | None) -> Iterator[None]:
    """Inside, one loss is computed and differentiated; with a rate, convolutions step along their gradients at once.

    So nothing is written for weights that only meet padding, and no gradient is stored: in a ResNet-18 on small images,
    these are most of the memory that a step would touch.
    """
    _own.steps = None if lr is None else FusedSteps(lr)
    try:
        yield
    finally:
        _own.steps = None


class NativeConvolution(_Replacement):
    """The forward pass of one convolution."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._known: dict[torch.Size, tuple[NativeLayer, int]] = {}

    @staticmethod
    def install(network: nn.Module) -> None:
        """Replace the forward pass of all convolutions that the kernels support, and lay out their weights for it."""
        if native().library:
            for layer in network.modules():
                if type(layer) is nn.Conv2d and LAYERS[nn.Conv2d].fits(layer):
                    layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)
                    setattr(layer, "forward", NativeConvolution(layer))  # noqa: B010 (pyright knows another type)

    def __call__(self, x: Tensor) -> Tensor:
        layer = self.module
        library = native().library
        weight = layer.weight
        usual = all(t.dtype is torch.float32 and t.device.type == "cpu" for t in (x, weight))
        if library is None or not usual or has_hooks(layer) or type(x) is not Tensor or x.dim() != 4 or x.numel() == 0:
            return nn.Conv2d.forward(layer, x)
        if _transforms_are_active():
            return nn.Conv2d.forward(layer, x)
        known = self._known.get(x.shape)
        if known is None:
            known = self._known[x.shape] = _describe(layer, x)
        made = known[0]
        if len(x) * made.oc * made.oh * made.ow >= LARGEST:
            return nn.Conv2d.forward(layer, x)
        steps: FusedSteps | None = getattr(_own, "steps", None)
        if steps is not None:
            steps.count_use(weight)
        return _Convolution.apply(library, layer, known, steps, x, weight, layer.bias)  # pyright: ignore[reportReturnType]


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        library: Library,
        layer: nn.Conv2d,
        known: tuple[NativeLayer, int],
        steps: FusedSteps | None,
        *inputs: Tensor | None,
    ) -> Tensor:
        x, weight, bias = inputs
        made, offset = known
        assert x is not None and weight is not None
        images = x.permute(0, 2, 3, 1).contiguous()
        rows = weight.contiguous(memory_format=torch.channels_last)
        out = torch.empty((len(x), made.oc, made.oh, made.ow), memory_format=torch.channels_last)
        made.weight = address(rows) + 4 * offset
        made.bias = None if bias is None else address(bias)
        memory = scratch(library.convolution_bytes(byref(made), len(x), 0))
        library.convolve(byref(made), address(images), len(x), out.data_ptr(), memory)
        ctx.save_for_backward(x, weight, bias)
        ctx.native = library, layer, made, offset, steps
        return out

    @staticmethod
    def backward(ctx: Any, *by_output: Tensor) -> Any:
        (slope,) = by_output
        x, weight, bias = ctx.saved_tensors
        library, layer, made, offset, steps = ctx.native
        _, _, _, _, by_x, by_weight, by_bias = ctx.needs_input_grad
        if torch.is_grad_enabled():
            return None, None, None, None, *_differentiate_convolution(layer, slope, x, weight, bias)
        images = x.permute(0, 2, 3, 1).contiguous()
        slopes = slope.permute(0, 2, 3, 1).contiguous()
        inputs = torch.empty_like(images) if by_x else None
        rows = weight.contiguous(memory_format=torch.channels_last)
        takes_step = by_weight and rows is weight and steps is not None and steps.may_take(weight)
        weights = torch.zeros_like(rows) if by_weight and not takes_step else None
        made.weight = (weight.data_ptr() if takes_step else address(rows)) + 4 * offset
        made.trained = int(by_weight)
        made.slope = None if weights is None else weights.data_ptr() + 4 * offset
        memory = scratch(library.convolution_bytes(byref(made), len(x), 1))
        to = None if inputs is None else inputs.data_ptr()
        rate = steps.lr if takes_step and steps is not None else 0.0
        library.convolve_back(byref(made), address(images), address(slopes), len(x), to, rate, memory)
        by_input = None if inputs is None else inputs.permute(0, 3, 1, 2)
        return None, None, None, None, by_input, weights, slopes.sum((0, 1, 2)) if by_bias else None


def _differentiate_convolution(layer: nn.Conv2d, slope: Tensor, *inputs: Tensor | None) -> list[Tensor | None]:
    """The gradients as functions of the inputs, by torch: they are to be differentiated once more."""
    moving = [t for t in inputs if t is not None and t.requires_grad]
    x, weight, bias = inputs
    assert x is not None and weight is not None
    out = conv2d(x, weight, bias, layer.stride, layer.padding)
    gradients = iter(torch.autograd.grad(out, moving, slope, create_graph=True))
    return [next(gradients) if t is not None and t.requires_grad else None for t in inputs]


def _describe(layer: nn.Conv2d, x: Tensor) -> tuple[NativeLayer, int]:
    """The convolution for images of this shape, and at which of an output's weights it begins.

    Weights of the window that never meet a pixel are left out: eight of nine behind images of one pixel.
    """
    made = LAYERS[nn.Conv2d].describe(layer, tuple(x.shape[1:]), None)
    assert made is not None
    row = made.kw * made.c
    made.strides[:] = (made.kh * row, 1, row, made.c)
    made.kh, made.ph, top = _crop(made.kh, made.ph, made.sh, made.h, made.oh)
    made.kw, made.pw, left = _crop(made.kw, made.pw, made.sw, made.w, made.ow)
    return made, top * row + left * made.c


def _crop(kernel: int, padding: int, stride: int, size: int, out: int) -> tuple[int, int, int]:
    """A window's size and padding along one side, without the part that is always padding, and how much was cut off."""
    live = [k for k in range(kernel) if any(0 <= i * stride - padding + k < size for i in range(out))]
    return (live[-1] + 1 - live[0], padding - live[0], live[0]) if live else (kernel, padding, 0)
