"""Finds the head of a network that was not written for Headwise, and checks that the network fits the task."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import ConfigError
from ..base import Task
from ..split import SplitModel, check_apart, split

HEADS = (nn.Linear, nn.Conv2d)
"""layers that can be a head; a convolution for one score per pixel"""
HOW = 'name the layer that is the head: headwise.split(net, "layer").'


def as_split(net: nn.Module, task: Task, head: str, name: str, original: nn.Module | None = None) -> SplitModel:
    """A copy of the network as body and head; messages call it `name`; `net` may be a copy of `original`."""
    original = net if original is None else original
    net = copy.deepcopy(net).to("cpu", torch.float32).eval()
    x = _samples(task)
    outputs: dict[str, list[Tensor]] = {}
    y = _watched(net, x, outputs, name, task)
    if isinstance(net, HEADS):  # the head is all there is
        model = SplitModel(nn.Identity(), net)
        model.head_name = ""
    else:
        head = "head" if isinstance(net, SplitModel) else head or _head(net, y, outputs, name)
        check_apart(original, head, name)
        model = net if isinstance(net, SplitModel) else split(net, head)
    _check_weights(model, name)
    if not _gives(model, x, y):
        raise ConfigError(f"{name}, whose output is not the output of its layer {head or 'head'!r}: {HOW}")
    _check_output(y, task, name)
    return model


def _samples(task: Task) -> Tensor:
    """Two made-up samples."""
    rng = torch.Generator().manual_seed(0)
    if task.vocabulary:
        return torch.randint(task.vocabulary, (2, *task.shape), generator=rng)
    return torch.rand(2, *task.shape, generator=rng)


def _watched(net: nn.Module, x: Tensor, outputs: dict[str, list[Tensor]], given: str, task: Task) -> Tensor:
    """The network's output; `outputs` collects those of its layers."""

    def watch(name: str) -> torch.utils.hooks.RemovableHandle:
        def see(layer: nn.Module, x: Any, y: Any) -> None:
            outputs.setdefault(name, []).append(y)

        return net.get_submodule(name).register_forward_hook(see)

    hooks = [watch(name) for name, layer in net.named_modules() if name and not [*layer.children()]]
    try:
        with torch.no_grad():
            y = net(x)
    except Exception as error:  # another's network can raise anything
        why = " ".join(str(error).split())[:200]
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


def _gives(model: SplitModel, x: Tensor, y: Tensor) -> bool:
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
