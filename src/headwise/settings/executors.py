"""Executors by name: built in, or offered by other packages through the entry point ``headwise.executors``.

A name refers to a function that makes an executor from a `Setup`; it is imported on first use.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from ..errors import ConfigError, nearest

if TYPE_CHECKING:  # checking a name must not import torch
    from ..engine.executors.base import Executor, Setup

GROUP = "headwise.executors"
OURS = {
    "serial": "headwise.engine.executors.serial:make",
    "pool": "headwise.engine.executors.pool:make",
    "threads": "headwise.engine.executors.threads:make",
    "flower-sim": "headwise.sites.simulation:make",
}
SITES = ("flower-sim", "flower")
"""kinds of engine whose clients are at sites; `headwise deploy` makes the executor for `flower`"""
LOCAL = ("serial", "pool", "threads")
"""what `local` stands for: `engine.workers` selects one of them"""
KINDS = ("local", "flower", *(name for name in OURS if name not in LOCAL))
"""built-in values of `engine.kind`"""


def check_name(kind: str) -> None:
    if kind not in KINDS and kind not in _offered():
        raise ConfigError(f"engine.kind is {kind!r}: {nearest(kind, (*KINDS, *_offered()))}")


def find(name: str) -> Callable[[Setup], Executor]:
    if name in OURS:
        return EntryPoint(name, OURS[name], GROUP).load()
    try:
        return _offered()[name].load()
    except Exception as error:  # another package can fail in any way
        said = f"{type(error).__name__}: {error}"
        raise ConfigError(f"engine.kind is {name!r}, which can't be imported: {said}.") from error


@cache
def _offered() -> dict[str, EntryPoint]:
    """From other packages, which can't take over a built-in name."""
    return {point.name: point for point in entry_points(group=GROUP) if point.name not in {*KINDS, *OURS}}
