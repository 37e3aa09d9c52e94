"""Networks that are plain chains of layers, which can be trained without autograd."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from torch import Tensor, nn

from ...models.split import SplitModel

DENSE = (nn.Linear, nn.ReLU, nn.Flatten)


class Layer(NamedTuple):
    """A linear layer of a chain."""

    weight: Tensor
    bias: Tensor | None
    relu: bool
    """whether a ReLU follows"""
    trained: bool


def chain_of(model: nn.Module, parts: Sequence[nn.Module]) -> list[Layer] | None:
    """The network's linear layers; None unless it has only these, ReLU and an initial flattening. `parts` learn."""
    flat = layers_of(model, DENSE) or []
    flat = flat[1:] if flat and isinstance(flat[0], nn.Flatten) else flat
    kinds = [type(m) for m in flat]
    if not flat or nn.Flatten in kinds or not kinds[0] is kinds[-1] is nn.Linear:
        return None
    learning = flat if model in parts else [m for part in parts for m in layers_of(part, DENSE) or []]
    chain = [
        Layer(m.weight, m.bias, relu=after is nn.ReLU, trained=m in learning)
        for m, after in zip(flat, [*kinds[1:], None], strict=True)
        if isinstance(m, nn.Linear)
    ]
    unique = len({id(layer.weight) for layer in chain}) == len(chain)
    return chain if unique and any(layer.trained for layer in chain) else None


def layers_of(module: nn.Module, kinds: Collection[type[nn.Module]]) -> list[nn.Module] | None:
    """The layers in forward order; None unless all are of these kinds and have no hooks."""
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        return None
    if type(module) is nn.Identity:
        return []
    if type(module) in kinds:
        whole = not isinstance(module, nn.Flatten) or (module.start_dim, module.end_dim) == (1, -1)
        return [module] if whole else None
    if type(module) not in (nn.Sequential, SplitModel):
        return None
    found: list[nn.Module] = []
    for child in module._modules.values():
        inner = [] if child is None else layers_of(child, kinds)
        if inner is None:
            return None
        found += inner
    return found
