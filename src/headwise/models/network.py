"""A network of your own: ``package.module:factory``, ``file.py:factory``, or an object that was passed in Python.

A factory is a function or class that returns an `nn.Module`. It gets the arguments that its parameters name: `classes`
(or `num_classes`), `shape`, `vocabulary` or the whole `task`. It is deliberately not found by name, because sites run
only Headwise's own networks.

Such a network is stored as a file without code: its weights as safetensors, its layers as JSON in their header. A layer
is described by the name of its class, its plain attributes, its weights and the layers in it. torch's layers are in a
table; `app.registry` imports other classes, which must be layers; none of their functions is called. A network that has
more than that, such as a hook, or whose class can't be imported, can't be described.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import math
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from ..disk.jsontext import to_json
from ..errors import ConfigError, shorten
from ..settings.choices import SCRIPTS
from .base import Model, Task
from .split import SplitModel, check_apart, has_views, rejoin, split


@dataclass(frozen=True)
class OwnNetwork(Model):
    """A network that other processes can also build: by a factory that can be imported, or from a file."""

    factory: str = ""
    "package.module:factory or file.py:factory"
    head: str = ""
    "name of the layer that is the head; none: the last one"
    path: str = ""
    "file with a network, or with the initial weights of one that only a Python session has"
    sha256: str = ""
    "of that file"
    called: str = ""
    "what a network that was passed as an object is called in messages"
    session: bool = False
    "whether only the Python session that passed it has the network, and `path` holds its initial weights at most"

    def build(self, task: Task) -> SplitModel:
        raise ConfigError(f"model is {self.called or 'network'}, which only its own Python session has.")


@dataclass(frozen=True)
class GivenNetwork(Model):
    """A network that was passed as an object or read from a file, or a factory that was imported by its name."""

    given: Any
    stored: OwnNetwork
    """its description in a run's folder"""

    def __post_init__(self) -> None:
        """Nothing to check: an object is not a setting."""

    def build(self, task: Task) -> SplitModel:
        name = f"model is {self.stored.factory!r}" if self.stored.factory else f"model is {title(self.given)}"
        net = self.given if isinstance(self.given, nn.Module) else call_factory(self.given, task, name)
        given = _with_weights(net, self.stored, name) if self.stored.session and self.stored.path else net
        return as_split(given, task, self.stored.head, name, net)


def title(given: Any) -> str:
    """What a network, class or function is called in messages."""
    return str(getattr(given, "__qualname__", None) or type(given).__name__)


def call_factory(factory: Callable[..., Any], task: Task, name: str) -> nn.Module:
    offered = {"task": task, "shape": task.shape, "vocabulary": task.vocabulary}
    offered |= dict.fromkeys(("classes", "num_classes", "n_classes"), task.classes)
    parameters = inspect.signature(factory).parameters.values()
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if missing := [p.name for p in named if p.default is p.empty and p.name not in offered]:
        raise ConfigError(f"{name}, which needs {missing[0]!r}: it can only be given {', '.join(offered)}.")
    try:
        made = factory(**{p.name: offered[p.name] for p in named if p.name in offered})
    except Exception as error:  # another's code can raise anything
        raise ConfigError(f"{name}, which failed: {type(error).__name__}: {error}.") from error
    made = made.build(task) if isinstance(made, Model) else made
    if not isinstance(made, nn.Module):
        raise ConfigError(f"{name}, which returned a {type(made).__name__}, but must return a torch.nn.Module.")
    return made


def read_stored(stored: OwnNetwork) -> bytes:
    """The file that a run's folder holds, which must not have changed."""
    try:
        data = Path(stored.path).read_bytes()
    except OSError as error:
        raise ConfigError(f"model is {stored.path!r}, which can't be read: {error.strerror}.") from error
    if hashlib.sha256(data).hexdigest() != stored.sha256:
        raise ConfigError(f"model is {stored.path!r}, which has changed: its sha256 is not {stored.sha256[:12]}...")
    return data


def _with_weights(net: nn.Module, stored: OwnNetwork, name: str) -> nn.Module:
    """A copy with the initial weights that the run began with."""
    net = copy.deepcopy(net)
    try:
        net.load_state_dict(load(read_stored(stored)))
        return net
    except RuntimeError as error:
        raise ConfigError(
            f"{name}, but {stored.called} of this run has other layers: pass the same network."
        ) from error


HEADS = (nn.Linear, nn.Conv2d)
"""layers that can be a head; a convolution for one score per pixel"""
HOW = 'name the layer that is the head: headwise.split(net, "layer").'


def as_split(net: nn.Module, task: Task, head: str, name: str, original: nn.Module | None = None) -> SplitModel:
    """A copy of the network as body and head; messages call it `name`; `net` may be a copy of `original`."""
    original = net if original is None else original
    net = copy.deepcopy(net).to("cpu", torch.float32).eval()
    x = _samples(task)
    outputs: dict[str, list[Tensor]] = {}
    y = _watch(net, x, outputs, name, task)
    if isinstance(net, HEADS):  # the head is all there is
        model = SplitModel(nn.Identity(), net)
        model.head_name = ""
    else:
        head = "head" if isinstance(net, SplitModel) else head or _head(net, y, outputs, name)
        check_apart(original, head, name)
        model = net if isinstance(net, SplitModel) else split(net, head)
    _check_weights(model, name)
    if model.head_name:
        head = model.head_name
        with torch.no_grad():
            y = rejoin(model).eval()(x)
    if not _is_same_network(model, x, y):
        follows = "leave out what follows it, such as a softmax, which the loss has already, or "
        raise ConfigError(f"{name}, whose output is not the output of its layer {head or 'head'!r}: {follows}{HOW}")
    _check_output(y, task, name)
    return model


def _samples(task: Task) -> Tensor:
    """Two made-up samples."""
    rng = torch.Generator().manual_seed(0)
    if task.vocabulary:
        return torch.randint(task.vocabulary, (2, *task.shape), generator=rng)
    return torch.rand(2, *task.shape, generator=rng)


def _watch(net: nn.Module, x: Tensor, outputs: dict[str, list[Tensor]], given: str, task: Task) -> Tensor:
    """The network's output; `outputs` collects those of its layers."""

    def attach(name: str) -> torch.utils.hooks.RemovableHandle:
        def see(layer: nn.Module, x: Any, y: Any) -> None:
            outputs.setdefault(name, []).append(y)

        return net.get_submodule(name).register_forward_hook(see)

    hooks = [attach(name) for name, layer in net.named_modules() if name and not [*layer.children()]]
    try:
        with torch.no_grad():
            y = net(x)
    except Exception as error:  # another's network can raise anything
        why = shorten(error)
        shape = f"{list(task.shape)}{f' of {task.vocabulary:,} tokens' if task.vocabulary else ''}"
        raise ConfigError(
            f"{given}, which fails with samples of shape {shape}: {type(error).__name__}: {why}."
        ) from None
    finally:
        for hook in hooks:
            hook.remove()
    if not isinstance(y, Tensor):
        raise ConfigError(f"{given}, which returns a {type(y).__name__}, but must return a tensor of scores.")
    return y


def _head(net: nn.Module, y: Tensor, outputs: dict[str, list[Tensor]], given: str) -> str:
    """The one layer whose output is the network's."""
    last = [name for name, seen in outputs.items() if seen[-1] is y]
    name = next((n for n in last if isinstance(net.get_submodule(n), HEADS)), "")
    if not name:
        kinds = [type(net.get_submodule(n)).__name__ for n in last if type(net.get_submodule(n)) is not nn.Identity]
        if kinds and ("Softmax" in kinds[0] or "Sigmoid" in kinds[0]):
            raise ConfigError(
                f"{given}, which ends with {kinds[0]}: leave it out, because the loss takes plain scores."
            )
        end = f"ends with {kinds[0]}" if kinds else "computes its output outside its layers"
        raise ConfigError(f"{given}, which {end}, not with a Linear layer: {HOW}")
    if len(outputs[name]) > 1:
        raise ConfigError(f"{given}, which uses its last layer {name!r} {len(outputs[name])} times: {HOW}")
    return name


def _is_same_network(model: SplitModel, x: Tensor, y: Tensor) -> bool:
    """Whether it is still the same network, now that its head comes after its body."""
    try:
        with torch.no_grad():
            return torch.allclose(model(x), y, rtol=1e-3, atol=1e-4)
    except Exception:  # another's network can raise anything
        return False


def _check_output(y: Tensor, task: Task, name: str) -> None:
    if y.dim() < 2 or y.shape[1] != task.classes:
        shape = ["samples", *y.shape[1:]]
        raise ConfigError(
            f"{name}, whose output has the shape [{', '.join(map(str, shape))}], but the data has {task.classes} "
            f"classes: its last layer must have {task.classes} outputs."
        )


def _check_weights(model: SplitModel, network: str) -> None:
    if not any(p.requires_grad for p in model.head.parameters()):
        raise ConfigError(f"{network}, whose head has no weights to train.")
    if bad := [name for name, t in model.state_dict().items() if t.is_floating_point() and not t.isfinite().all()]:
        raise ConfigError(f"{network}, whose {bad[0]} has values that are not finite.")


_USUAL = vars(nn.Module())
"""what every layer has"""
_NAMES = (
    "celu elu gelu glu hardsigmoid hardswish hardtanh leaky_relu log_softmax logsigmoid mish normalize relu relu6 selu "
    "sigmoid silu softmax softplus softsign tanh tanhshrink"
)
FUNCTIONS: dict[str, Any] = {name: getattr(torch.nn.functional, name) for name in _NAMES.split()}
"""functions that a layer may have as an attribute, such as its activation"""
_CLASSES = [c for c in vars(nn).values() if isinstance(c, type) and issubclass(c, nn.Module)]
LAYERS = {f"{c.__module__}:{c.__qualname__}": c for c in _CLASSES}
"""torch's own layers, which nobody has to import"""


class _IndescribableError(Exception):
    pass


def describe_network(net: nn.Module) -> bytes | None:
    """The network as a file; None if that is not possible."""
    tensors: dict[str, Tensor] = {}
    try:
        tree = _layer(net, "", {}, tensors)
    except _IndescribableError:
        return None
    if has_views(net):  # which the file would store apart
        return None
    return save(tensors, {"network": to_json(tree)})


def pack_weights(net: nn.Module) -> bytes:
    """Only its weights and buffers."""
    return save({k: t.detach().clone().contiguous() for k, t in net.state_dict().items()})


def rebuild_network(data: bytes, path: str, load_class: Callable[[str], Any]) -> nn.Module:
    """The network in a file that `describe_network` made; `load_class` finds ``module:Class``."""
    try:
        return _rebuild(_read_tree(data), load(data), {}, "", load_class)
    except ConfigError:
        raise
    except Exception as error:  # a damaged file can raise anything
        raise ConfigError(f"{path} can't be read as a network: {type(error).__name__}: {error}.") from error


def layer_classes(data: bytes) -> set[str]:
    """The classes of the layers in such a file, as ``module:Class``; none if it is damaged."""

    def walk(tree: Any) -> set[str]:
        if tree is None or "same" in tree:
            return set()
        return {tree["class"]}.union(*map(walk, tree["layers"].values()))

    try:
        return walk(_read_tree(data))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error):
        return set()  # whoever builds the network says what is wrong


def _read_tree(data: bytes) -> Any:
    (size,) = struct.unpack("<Q", data[:8])
    return json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["network"])


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
    if (name := getattr(value, "__name__", "")) and FUNCTIONS.get(name) is value:
        return {"function": name}
    raise _IndescribableError


def _value(plain: Any) -> Any:
    if not isinstance(plain, dict):
        return plain
    ((kind, inner),) = plain.items()
    if kind == "function":
        return FUNCTIONS[inner]
    return {"tuple": tuple, "list": list}[kind](_value(v) for v in inner)


def _rebuild(
    tree: dict[str, Any],
    tensors: dict[str, Tensor],
    made: dict[str, Any],
    path: str,
    load_class: Callable[[str], Any],
) -> nn.Module:
    if "same" in tree:
        return made[tree["same"]]
    kind = LAYERS.get(tree["class"]) or load_class(tree["class"])
    if not isinstance(kind, type) or not issubclass(kind, nn.Module):
        raise ConfigError(f"the network has a {tree['class']}, which is not a layer.")
    layer = made[path] = kind.__new__(kind)  # before its `__init__`
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
        layer._modules[k] = None if inner is None else _rebuild(inner, tensors, made, f"{path}{k}.", load_class)
    return layer
