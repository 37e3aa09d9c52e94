"""Executors by name: ours, and those that other packages offer by the entry point ``headwise.executors``.

Each name stands for a function that makes an executor of a `Setup`; it is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from ..errors import ConfigError, nearest

if TYPE_CHECKING:  # settings are checked against these names, which must not take torch
    from ..engine.executors.base import Executor, Setup

GROUP = "headwise.executors"
OURS = {
    "serial": "headwise.engine.executors.serial:make",
    "pool": "headwise.engine.executors.pool:make",
    "threads": "headwise.engine.executors.threads:make",
    "flower-sim": "headwise.sites.simulation:make",
}
SITES = ("flower-sim", "flower")
"""kinds of engine whose clients are at sites; `headwise deploy` makes the executor of the second"""
KINDS = ("local", *SITES)
"""what `engine.kind` may be without other packages; local is one of our executors, by `engine.workers`"""


def check_name(kind: str) -> None:
    """Raise if no executor has this name."""
    if kind not in KINDS and kind not in _offered():
        raise ConfigError(f"engine.kind is {kind!r}: {nearest(kind, (*KINDS, *_offered()))}")


def find(name: str) -> Callable[[Setup], Executor]:
    """The function of this name."""
    if name in OURS:
        return EntryPoint(name, OURS[name], GROUP).load()
    try:
        return _offered()[name].load()
    except Exception as error:  # another package can fail in any way
        said = f"{type(error).__name__}: {error}"
        raise ConfigError(f"engine.kind is {name!r}, which can't be imported: {said}.") from error


@cache
def _offered() -> dict[str, EntryPoint]:
    """By other packages; a name of ours stays ours."""
    return {point.name: point for point in entry_points(group=GROUP) if point.name not in {*KINDS, *OURS}}
