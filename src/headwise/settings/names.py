"""The names that settings accept: those of Headwise's own files, and what other packages offer.

Reads file names and the metadata of installed packages; nothing is imported. `app.registry` turns a name into a class.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any, Literal

from ..errors import ConfigError, nearest

Kind = Literal["method", "model", "data", "partition"]

HOME = Path(__file__).parents[1]
ROOMS: dict[Kind, str] = {
    "method": "methods",
    "model": "models",
    "data": "data/sources",
    "partition": "data/partition",
}
"""the folder of each kind, with a file for each name"""
EXECUTORS = {
    "serial": "headwise.engine.executors.local:make_serial",
    "pool": "headwise.engine.executors.pool:make",
    "threads": "headwise.engine.executors.local:make_threads",
    "flower-sim": "headwise.sites.apps:simulate",
}
"""functions that make an executor from its setup"""
LOCAL = ("serial", "pool", "threads")
"""those of `engine.kind` local, of which `engine.workers` selects one"""
SITES = ("flower-sim", "flower")
"""kinds of engine whose clients are at sites; `headwise deploy` makes the executor for `flower`"""
ENGINES = ("local", "flower", *(name for name in EXECUTORS if name not in LOCAL))
"""built-in values of `engine.kind`"""


def list_names(kind: Kind) -> list[str]:
    """All names of this kind, including installed plug-ins."""
    return sorted({*find_built_ins(kind), *plugins(kind)})


@cache
def find_built_ins(kind: Kind) -> dict[str, Path]:
    """Headwise's own: files that define a class of the same name. Read as text, for speed."""
    own: dict[str, Path] = {}
    for path in sorted((HOME / ROOMS[kind]).glob("*.py")):
        classes = re.findall(r"^class (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        if any(is_named(c, path.stem) for c in classes) and path.stem != "base":
            own[path.stem.replace("_", "-")] = path
    return own


@cache  # takes milliseconds, and a table asks a thousand times
def plugins(kind: Kind | Literal["executor"]) -> dict[str, importlib.metadata.EntryPoint]:
    """What other packages offer; they can't take over a built-in name."""
    group = f"headwise.{'data' if kind == 'data' else kind + 's'}"
    ours = {*ENGINES, *EXECUTORS} if kind == "executor" else find_built_ins(kind)
    return {p.name: p for p in importlib.metadata.entry_points(group=group) if p.name not in ours}


def name_of(kind: Kind, cls: type[Any]) -> str:
    """The name by which settings refer to this class."""
    room, _, stem = cls.__module__.rpartition(".")
    if room == package_of(kind):
        return stem.replace("_", "-")
    for name, plugin in plugins(kind).items():
        if plugin.value == f"{cls.__module__}:{cls.__qualname__}":
            return name
    path = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if path and is_named(cls.__name__, Path(path).stem):
        return str(Path(path).resolve())
    raise ConfigError(
        f"{kind} is the class {cls.__qualname__}, but must be defined in its own file, named after the class, so that "
        f"workers and later runs can import it."
    )


def package_of(kind: Kind) -> str:
    return f"headwise.{ROOMS[kind].replace('/', '.')}"


def is_named(cls: str, stem: str) -> bool:
    """Whether a class is named after its file."""
    return cls.lower() == stem.replace("_", "").lower()


def check_engine(kind: str) -> None:
    """Raise unless this is a value of `engine.kind`."""
    if kind not in ENGINES and kind not in plugins("executor"):
        raise ConfigError(f"engine.kind is {kind!r}: {nearest(kind, (*ENGINES, *plugins('executor')))}")
