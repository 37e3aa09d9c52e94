"""A network of your own: ``package.module:factory``, ``file.py:factory``, or an object that was passed in Python.

A factory is a function or class that returns an `nn.Module`. What it names as parameters, it is given: `classes` (or
`num_classes`), `shape`, `vocabulary` or the whole `task`. It is deliberately not found by name: sites run no such code.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import ConfigError
from .base import Model, Task
from .own.described import read_weights, rebuilt_network
from .own.heads import as_split
from .split import SplitModel


@dataclass(frozen=True)
class OwnNetwork(Model):
    """A network that others can build, too: by a factory that can be imported, or from a file."""

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
        if self.session or not self.path:
            raise ConfigError(f"model is {self.called or 'network'}, which only its own Python session has.")
        return as_split(rebuilt_network(content(self), self.path), task, self.head, f"model is {self.called}")


@dataclass(frozen=True)
class GivenNetwork(Model):
    """A network that was passed as an object, or a factory that was imported by its name."""

    given: Any
    stored: OwnNetwork
    """what a run's folder says about it"""

    def __post_init__(self) -> None:
        """Nothing to check: an object is not a setting."""

    def build(self, task: Task) -> SplitModel:
        name = f"model is {self.stored.factory!r}" if self.stored.factory else f"model is {title(self.given)}"
        net = self.given if isinstance(self.given, nn.Module) else call_factory(self.given, task, name)
        given = _with_weights(net, self.stored, name) if self.stored.path else net
        return as_split(given, task, self.stored.head, name, net)


def title(given: Any) -> str:
    """What a network, class or function is called in messages."""
    return str(getattr(given, "__qualname__", None) or type(given).__name__)


def call_factory(factory: Callable[..., Any], task: Task, name: str) -> nn.Module:
    """The factory's network for this task."""
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


def content(stored: OwnNetwork) -> bytes:
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
    net, weights = copy.deepcopy(net), read_weights(content(stored))
    try:
        net.load_state_dict(weights)
        return net
    except RuntimeError as error:
        raise ConfigError(
            f"{name}, but {stored.called} of this run has other layers: pass the same network."
        ) from error
