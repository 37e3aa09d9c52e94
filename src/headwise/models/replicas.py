"""Copies of networks, made many times per round."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)

_HARMLESS = (int, float, str, bytes, bool, type(None))
"""immutable attributes, which a copy may share"""
_USUAL = frozenset(vars(nn.Module()))
"""attributes that every module has"""
_TABLES = {k: type(v) for k, v in vars(nn.Module()).items() if isinstance(v, (dict, set))}
"""those of them that are dicts or sets, with their types"""
_plain: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


@torch.no_grad()
def replica(module: M, values: Mapping[str, Tensor]) -> M:
    """A copy of the network with these values, named as in its state, instead of its own.

    The copy has the original's memory layout. `copy.deepcopy` does the same but is many times slower; it is used only
    for networks that hold anything besides layers, parameters and plain numbers.
    """
    if module not in _plain:
        _plain[module] = all(map(_is_plain, module.modules()))
    if not _plain[module]:
        twin = copy.deepcopy(module)
        twin.load_state_dict({**twin.state_dict(), **values})
        return twin
    return _twin(module, values, "", {})


def _is_plain(layer: nn.Module) -> bool:
    """Whether a layer holds only what `_twin` knows how to copy."""
    others = [v for k, v in vars(layer).items() if k not in _USUAL]
    flat = [v for value in others for v in (value if isinstance(value, tuple) else (value,))]  # pyright: ignore[reportUnknownVariableType]
    return all(isinstance(v, _HARMLESS) for v in flat)


def _twin(module: M, values: Mapping[str, Tensor], prefix: str, made: dict[int, Any]) -> M:
    """The recursion of `replica`; a module or parameter with two names is copied once."""
    if id(module) in made:
        return made[id(module)]
    state = module.__dict__.copy()
    for name, kind in _TABLES.items():  # hooks and the like, which a copy must not share
        table = state[name]
        state[name] = table.copy() if table else kind()
    twin = made[id(module)] = object.__new__(type(module))
    object.__setattr__(twin, "__dict__", state)
    for name, p in module._parameters.items():
        if p is not None:
            if id(p) not in made:
                made[id(p)] = nn.Parameter(_copy(p, values, prefix + name), p.requires_grad)
            state["_parameters"][name] = made[id(p)]
    for name, b in module._buffers.items():
        if b is not None:
            state["_buffers"][name] = _copy(b, values, prefix + name)
    for name, child in module._modules.items():
        if child is not None:
            state["_modules"][name] = _twin(child, values, f"{prefix}{name}.", made)
    return twin


def _copy(t: Tensor, values: Mapping[str, Tensor], name: str) -> Tensor:
    value = values.get(name)
    if value is None:
        value = t
    if value.shape != t.shape:
        raise ValueError(f"{name} has the shape {tuple(value.shape)}, but must have {tuple(t.shape)}")
    if value.dtype is t.dtype and value.stride() == t.stride():
        return value.clone()  # half the time, and what every client asks for in every round
    return torch.empty_like(t).copy_(value)
