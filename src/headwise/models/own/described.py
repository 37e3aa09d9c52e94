"""A network as a file that holds no code: its weights as safetensors, its layers as JSON in their header.

A layer is described by the name of its class, its plain attributes, its weights and the layers in it. Reading a file
imports these classes, which must be layers, but calls none of their functions. A network that has more than that, such
as a hook, or whose class can't be imported, can't be described.
"""

from __future__ import annotations

import json
import math
import pkgutil
import struct
import sys
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from ...disk.jsontext import to_json
from ...errors import ConfigError
from ...settings.choices import SCRIPTS
from ..split import has_views

_USUAL = vars(nn.Module())
"""what every layer has"""
_FUNCTIONS = "torch.nn.functional"


class _IndescribableError(Exception):
    pass


def described_network(net: nn.Module) -> bytes | None:
    """The network as a file; None if that is not possible."""
    tensors: dict[str, Tensor] = {}
    try:
        tree = _layer(net, "", {}, tensors)
    except _IndescribableError:
        return None
    if has_views(net):  # which the file would store apart
        return None
    return save(tensors, {"network": to_json(tree)})


def weights(net: nn.Module) -> bytes:
    """Only its weights and buffers."""
    return save({k: t.detach().clone().contiguous() for k, t in net.state_dict().items()})


def read_weights(data: bytes) -> dict[str, Tensor]:
    return load(data)


def rebuilt_network(data: bytes, path: str) -> nn.Module:
    """The network in a file that `described_network` made."""
    try:
        (size,) = struct.unpack("<Q", data[:8])
        tree = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["network"])
        return _built(tree, load(data), {})
    except ConfigError:
        raise
    except Exception as error:  # a damaged file can raise anything
        raise ConfigError(f"{path} can't be read as a network: {type(error).__name__}: {error}.") from error


def _layer(layer: nn.Module, path: str, seen: dict[int, str], tensors: dict[str, Tensor]) -> dict[str, Any]:
    if id(layer) in seen:
        return {"same": seen[id(layer)]}
    seen[id(layer)] = path
    state = vars(layer)
    if any(
        state[k] for k, v in _USUAL.items() if isinstance(v, dict) and k not in ("_parameters", "_buffers", "_modules")
    ):
        raise _IndescribableError  # it has hooks
    return {
        "class": _class(layer),
        "plain": {k: _plain(v) for k, v in state.items() if k not in _USUAL},
        "training": layer.training,
        "parameters": {k: _tensor(p, path + k, seen, tensors) for k, p in layer._parameters.items()},
        "frozen": [k for k, p in layer._parameters.items() if p is not None and not p.requires_grad],
        "buffers": {k: _tensor(b, path + k, seen, tensors) for k, b in layer._buffers.items()},
        "scratch": sorted(layer._non_persistent_buffers_set),
        "layers": {
            k: None if m is None else _layer(m, f"{path}{k}.", seen, tensors) for k, m in layer._modules.items()
        },
    }


def _class(layer: nn.Module) -> str:
    kind = type(layer)
    name = f"{kind.__module__}:{kind.__qualname__}"
    if kind.__module__ in SCRIPTS or getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is not kind:
        raise _IndescribableError
    return name


def _tensor(t: Tensor | None, name: str, seen: dict[int, str], tensors: dict[str, Tensor]) -> str | None:
    """The name under which it is stored; one that two layers share is stored once."""
    if t is None:
        return None
    if nn.parameter.is_lazy(t):
        raise _IndescribableError
    if id(t) not in seen:
        seen[id(t)] = name
        tensors[name] = t.detach().cpu().clone().contiguous()
    return seen[id(t)]


def _plain(value: Any) -> Any:
    if value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
        return value
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):  # pyright: ignore[reportUnknownArgumentType]
        return {type(value).__name__: [_plain(v) for v in value]}
    name = getattr(value, "__name__", "")
    if name and getattr(torch.nn.functional, name, None) is value:  # such as an activation
        return {"function": name}
    raise _IndescribableError


def _value(plain: Any) -> Any:
    if not isinstance(plain, dict):
        return plain
    ((kind, inner),) = plain.items()
    if kind == "function":
        return pkgutil.resolve_name(f"{_FUNCTIONS}:{inner}")
    return {"tuple": tuple, "list": list}[kind](_value(v) for v in inner)


def _built(tree: dict[str, Any], tensors: dict[str, Tensor], made: dict[str, Any], path: str = "") -> nn.Module:
    if "same" in tree:
        return made[tree["same"]]
    layer = made[path] = _empty(tree["class"])
    nn.Module.__init__(layer)
    vars(layer).update({k: _value(v) for k, v in tree["plain"].items()})
    layer.training = tree["training"]
    for k, name in tree["parameters"].items():
        if name is not None and name not in made:
            made[name] = nn.Parameter(tensors[name], requires_grad=k not in tree["frozen"])
        layer._parameters[k] = None if name is None else made[name]
    layer._buffers.update({k: None if name is None else tensors[name] for k, name in tree["buffers"].items()})
    layer._non_persistent_buffers_set.update(tree["scratch"])
    for k, inner in tree["layers"].items():
        layer._modules[k] = None if inner is None else _built(inner, tensors, made, f"{path}{k}.")
    return layer


def _empty(name: str) -> nn.Module:
    """A layer of this class, before its `__init__`."""
    try:
        kind = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"the network has a {name}, which can't be imported here.") from error
    if not isinstance(kind, type) or not issubclass(kind, nn.Module):
        raise ConfigError(f"the network has a {name}, which is not a layer.")
    return kind.__new__(kind)
