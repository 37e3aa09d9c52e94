"""The one place where a network is divided into a body (feature extractor) and a head (classifier)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]

from ..errors import ConfigError
from ..params import Params

Buffers = Literal["params", "all", "local"]
"""What clients send of BatchNorm: its affine parameters, its statistics as well, or nothing."""


class SplitModel(nn.Module):
    """A network of a body (feature extractor) and a head (classifier): ``forward(x) = head(body(x))``.

    Args:
        body: From samples to features.
        head: From features to scores; its parameters share no memory with those of the body.

    >>> net = SplitModel(nn.Flatten(), nn.Linear(4, 2))
    >>> [*net.params("head")], net.width
    (['head.weight', 'head.bias'], 4)
    """

    batchnorm: Buffers = "params"
    head_name: str | None = None
    """of a network that `split` divided: where the head was in it"""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))

    @property
    def width(self) -> int:
        """K, the number of features the head takes: of each sample, or of each pixel."""
        first = next(m for m in self.head.modules() if isinstance(m, (nn.Linear, nn.Conv2d)))
        return first.in_features if isinstance(first, nn.Linear) else first.in_channels

    def params(self, part: str = "") -> Params:
        """A snapshot of what may travel, of the whole model or of its ``"body"`` or ``"head"``."""
        return _snapshot(self.live(part) | self._statistics(part) if self.batchnorm == "all" else self.live(part))

    def state(self, part: str = "") -> Params:
        """A snapshot of everything, buffers and private layers included, for what stays at its client."""
        return _snapshot(Params(self.state_dict()).select(_prefix(part)))

    def private(self) -> Params:
        """A snapshot of what stays at its client: whatever is in `state` but not in `params`."""
        if self.batchnorm != "local" and not _has_buffers(self):
            return Params()
        travelling = self.live().keys() | self._statistics("").keys()
        return _snapshot(Params({k: t for k, t in self.state_dict().items() if k not in travelling}))

    def weights(self, part: str = "") -> Params:
        """The live parameters, including those that never travel."""
        weights: dict[str, Tensor] = {}
        _gather(self, "", weights, set())
        return Params(weights).select(_prefix(part)) if part else Params(weights)

    def live(self, part: str = "") -> Params:
        """The live parameters that may travel, for use in a loss."""
        weights = self.weights(part)
        if self.batchnorm != "local":
            return weights
        private = self._norm_names()
        return Params({k: p for k, p in weights.items() if k not in private})

    def given(self, params: Params) -> Callable[[Tensor], Tensor]:
        """This model as a function, with these parameters in place of its own."""
        return _as_function(self, params, "")

    def head_given(self, params: Params) -> Callable[[Tensor], Tensor]:
        """The head as a function of features, with these parameters, named as in the whole model."""
        return _as_function(self.head, params, "head.")

    def body_given(self, params: Params) -> Callable[[Tensor], Tensor]:
        """The body as a function of inputs, with these parameters, named as in the whole model."""
        return _as_function(self.body, params, "body.")

    def _statistics(self, part: str) -> Params:
        if self.batchnorm != "all":
            return Params()
        kept = self.state_dict().keys()  # a non-persistent buffer is scratch space
        return Params({k: t for k, t in self.named_buffers() if k in kept}).select(_prefix(part))

    def _norm_names(self) -> frozenset[str]:
        norms = [(n, m) for n, m in self.named_modules() if isinstance(m, _BatchNorm)]
        return frozenset(f"{n}.{p}" for n, m in norms for p, _ in m.named_parameters())


def split(module: nn.Module, head: str) -> SplitModel:
    """Split a copy of a network into a body and a head.

    Training compares both on made-up samples, and refuses the model if something follows the head, such as a softmax.

    Args:
        module: A network whose output is the output of its layer `head`.
        head: The name of that layer, as in ``module.named_modules()``.

    Returns:
        The model, whose parameters are named ``body.…`` and ``head.…``.

    Raises:
        ConfigError: If there is no such layer, or it shares weights with the others.

    >>> net = split(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), head="2")
    >>> net.head
    Linear(in_features=3, out_features=2, bias=True)
    """
    if head not in (names := [n for n, _ in module.named_modules() if n]):
        layers = ", ".join(names) or "none"
        raise ConfigError(f"head is {head!r}, but the layers of this {type(module).__name__} are: {layers}.")
    check_apart(module, head, f"this is a {type(module).__name__}")  # in a copy, views of one tensor are apart
    body = copy.deepcopy(module)
    last = body.get_submodule(head)
    body.set_submodule(head, nn.Identity())
    model = SplitModel(body, last)
    model.head_name = head
    return model


def rejoin(model: SplitModel) -> nn.Module:
    """A copy of the network that `split` divided."""
    net = copy.deepcopy(model.body)
    net.set_submodule(model.head_name or "", copy.deepcopy(model.head))
    return net


def check_apart(net: nn.Module, head: str, network: str) -> None:
    """Refuse weights or buffers that a head shares with the rest: a private head would travel with the body."""
    ends = {True: (0, ""), False: (0, "")}
    for start, end, name in sorted((*_extent(t), name) for name, t in _tensors(net)):
        inside = name.startswith(f"{head}.")
        reached, other = ends[not inside]
        if start < reached:
            pair = f"{name} and {other}" if inside else f"{other} and {name}"
            raise ConfigError(
                f"{network}, whose {pair} share their values, so that a private head would travel with the body: "
                f"give the head {head!r} weights of its own."
            )
        ends[inside] = max(ends[inside], (end, name))


def has_views(net: nn.Module) -> bool:
    """Whether some of its tensors are not the same, but have values in common: a copy would not."""
    reached = 0
    for start, end in sorted({id(t): _extent(t) for _, t in _tensors(net)}.values()):
        if start < reached:
            return True
        reached = max(reached, end)
    return False


def _tensors(net: nn.Module) -> list[tuple[str, Tensor]]:
    """Its parameters and buffers, under all of their names."""
    named = [*net.named_parameters(remove_duplicate=False), *net.named_buffers(remove_duplicate=False)]
    return [(name, t) for name, t in named if not nn.parameter.is_lazy(t) and t.numel()]


def _extent(t: Tensor) -> tuple[int, int]:
    """The addresses between which its values are; a tensor without memory has one of its own."""
    if not t.data_ptr():
        return id(t), id(t) + 1
    reach = 1 + sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True))
    return t.data_ptr(), t.data_ptr() + reach * t.element_size()


def has_batchnorm(module: nn.Module) -> bool:
    """Whether a network has BatchNorm, which can't normalize a batch of one sample.

    Args:
        module: A network or a part of one.

    Returns:
        Whether one of its layers is BatchNorm.

    >>> has_batchnorm(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)))
    True
    """
    return any(isinstance(m, _BatchNorm) for m in module.modules())


def split_norms(model: SplitModel) -> tuple[Params, Params]:
    """A snapshot of a model in two parts.

    Args:
        model: A network with or without BatchNorm.

    Returns:
        Its BatchNorm layers, with their statistics, and what may travel of all other layers.

    >>> norms, others = split_norms(SplitModel(nn.BatchNorm1d(4), nn.Linear(4, 2)))
    >>> [*norms][:2], [*others]
    (['body.weight', 'body.bias'], ['head.weight', 'head.bias'])
    """
    layers = {name for name, m in model.named_modules() if isinstance(m, _BatchNorm)}
    norms = Params({k: t for k, t in model.state().items() if k.rpartition(".")[0] in layers})
    return norms, Params({k: t for k, t in model.params().items() if k not in norms})


def channels_last(module: nn.Module) -> bool:
    """Whether this network is faster with channels-last images and kernels.

    On a CPU, plain convolutions with pooling are a third faster that way, but a sixth slower with normalization in
    between. Timing it in every run would be more general, but equal runs could then differ in their last bits.
    """
    kinds = {type(m) for m in module.modules()}
    return nn.Conv2d in kinds and not kinds & {nn.BatchNorm2d, nn.GroupNorm, nn.InstanceNorm2d, nn.LayerNorm}


def lay_out(model: SplitModel) -> SplitModel:
    """The network in its fastest memory layout."""
    return model.to(memory_format=torch.channels_last) if channels_last(model) else model  # pyright: ignore[reportCallIssue]


def _as_function(module: nn.Module, params: Params, prefix: str) -> Callable[[Tensor], Tensor]:
    named = {k.removeprefix(prefix): t for k, t in params.items()}
    call_with = getattr(vars(module).get("forward"), "call_with", None)  # of a forward pass that the engine replaced

    def call(x: Tensor) -> Tensor:
        if call_with is not None and (outputs := call_with(named, x)) is not None:
            return outputs
        own = dict(module.named_parameters())
        values = {k: _restore_strides(t, own[k]) if k in own else t for k, t in named.items()}
        return functional_call(module, values, (x,))

    return call


def _restore_strides(t: Tensor, like: Tensor) -> Tensor:
    """Restore the strides of a one-channel kernel: arithmetic drops channels-last, and the convolution gets slow."""
    ambiguous = t.dim() == 4 and t.is_contiguous() and t.is_contiguous(memory_format=torch.channels_last)
    return t.as_strided(t.shape, like.stride()) if ambiguous and t.stride() != like.stride() else t


def _gather(module: nn.Module, prefix: str, weights: dict[str, Tensor], seen: set[int]) -> None:
    """`named_parameters` in a third of the time; every client needs it in every round."""
    for name, p in module._parameters.items():
        if p is not None and id(p) not in seen:
            seen.add(id(p))
            weights[prefix + name] = p
    for name, child in module._modules.items():
        if child is not None and id(child) not in seen:
            seen.add(id(child))
            _gather(child, f"{prefix}{name}.", weights, seen)


def _has_buffers(module: nn.Module) -> bool:
    return bool(module._buffers) or any(m is not None and _has_buffers(m) for m in module._modules.values())


def snapshot(module: nn.Module) -> Params:
    """Everything that the module holds, as it is now."""
    return _snapshot(Params(module.state_dict()))


def _snapshot(params: Params) -> Params:
    """Copies in the default layout: sums over them must not depend on the model's memory layout."""
    return params.map(lambda t: _copy(t.detach()))


def _copy(t: Tensor) -> Tensor:
    """Copy on write, as a client's message is usually the last use of its model; but copy a view of a larger block."""
    whole = t.is_contiguous() and t.untyped_storage().nbytes() == t.nbytes
    return torch._lazy_clone(t) if whole else t.clone(memory_format=torch.contiguous_format)  # pyright: ignore[reportPrivateImportUsage]


def _prefix(part: str) -> str:
    return f"{part}." if part else ""


class Composed(nn.Module):
    """A function of modules and tensors as one module: ``forward(x) = rule(x, **parts)``.

    Its parts are in `state_dict`, so that it can be stored and exported as a whole.

    Args:
        rule: Computes the output from the samples and the parts, by their names.
        **parts: Modules and tensors.

    >>> from torch import zeros
    >>> both = Composed(lambda x, a, shift: a(x) + shift, a=nn.Linear(2, 3), shift=zeros(3))
    >>> sorted(both.state_dict())
    ['a.bias', 'a.weight', 'shift']
    """

    def __init__(self, rule: Callable[..., Tensor], **parts: nn.Module | Tensor) -> None:
        super().__init__()
        self._rule = rule
        self._names = tuple(parts)
        for name, part in parts.items():
            if isinstance(part, nn.Module):
                self.add_module(name, part)
            else:
                self.register_buffer(name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self._rule(x, **{name: getattr(self, name) for name in self._names})
