"""Networks that are plain chains of layers, which can be trained without autograd."""

from __future__ import annotations

from collections.abc import Collection

from torch import nn

from ...models.split import SplitModel


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
