"""Copies of networks, made many times per round."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)

_HARMLESS = (int, float, str, bytes, bool, type(None))
"""attributes of these types mean the same in a copy, which may therefore share them"""


@cache
def _own_attributes() -> frozenset[str]:
    """What every module has."""
    return frozenset(vars(nn.Module()))


@torch.no_grad()
def replica(module: M, values: Mapping[str, Tensor]) -> M:
    """A copy of the network with these values, named as in its state, instead of its own.

    The copy lies in memory as the original does. `copy.deepcopy` would do the same in four times the time; it is what
    networks get that hold anything besides layers, parameters and plain numbers.
    """
    if not _is_plain(module):
        twin = copy.deepcopy(module)
        twin.load_state_dict({**twin.state_dict(), **values})
        return twin
    return _twin(module, values, "", {})


def _is_plain(module: nn.Module) -> bool:
    """Whether all layers hold only what `_twin` knows how to copy."""
    for layer in module.modules():
        others = (v for k, v in vars(layer).items() if k not in _own_attributes())
        if not all(isinstance(v, _HARMLESS) or (isinstance(v, tuple) and _flat(v)) for v in others):
            return False
    return True


def _flat(values: tuple[object, ...]) -> bool:
    return all(isinstance(v, _HARMLESS) for v in values)


def _twin(module: M, values: Mapping[str, Tensor], prefix: str, made: dict[int, object]) -> M:
    """The recursion of `replica`; what a network holds under two names is made once."""
    if id(module) in made:
        return made[id(module)]  # pyright: ignore[reportReturnType]
    twin = type(module).__new__(type(module))
    made[id(module)] = twin
    # hooks and the like are kept in dictionaries, which a copy must not share
    state = {k: v.copy() if isinstance(v, dict) else v for k, v in vars(module).items()}
    twin.__dict__ = state
    state["_parameters"] = {k: _value(p, values, prefix + k, made) for k, p in module._parameters.items()}
    state["_buffers"] = {k: _value(b, values, prefix + k, made) for k, b in module._buffers.items()}
    state["_modules"] = {
        k: None if m is None else _twin(m, values, f"{prefix}{k}.", made) for k, m in module._modules.items()
    }
    return twin


def _value(t: Tensor | None, values: Mapping[str, Tensor], name: str, made: dict[int, object]) -> Tensor | None:
    if t is None:
        return None
    if id(t) not in made:
        value = values.get(name, t)
        if value.shape != t.shape:
            raise ValueError(f"{name} has the shape {tuple(value.shape)}, but must have {tuple(t.shape)}")
        copied = torch.empty_like(t).copy_(value)
        made[id(t)] = nn.Parameter(copied, t.requires_grad) if isinstance(t, nn.Parameter) else copied
    return made[id(t)]  # pyright: ignore[reportReturnType]
