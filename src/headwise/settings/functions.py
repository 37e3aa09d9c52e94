"""A user's own functions and classes by reference: ``package.module:function`` or ``file.py:function``."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ..errors import ConfigError, nearest
from .fields import Parsed

SCRIPTS = ("__main__", "__mp_main__")
"""modules that other processes can't import"""
BUILT_IN = ("flip", "crop")
SESSION = "session:"
"""before the name of a function that only the Python session has that passed it"""


@dataclass(frozen=True)
class Augmentation(Parsed):
    """A change to training samples: one of ours by its name, or a user's own function."""

    name: str
    given: Any = field(default=None, repr=False, compare=False)
    """the function, if only this Python session has it"""

    @property
    def is_built_in(self) -> bool:
        return self.name in BUILT_IN

    @property
    def called(self) -> str:
        return self.name.removeprefix(SESSION)

    @classmethod
    def parse(cls, value: Any, at: str) -> Self:
        if callable(value):
            name = reference(value)
            title = str(getattr(value, "__name__", type(value).__name__))
            return cls(name) if name else cls(f"{SESSION}{title}", value)
        if not isinstance(value, str):
            raise ConfigError(f"{at} is a {type(value).__name__}, but must be {' or '.join(BUILT_IN)}, or a function.")
        place, colon, function = value.rpartition(":")
        if not (colon and place and function.isidentifier()) and value not in BUILT_IN and SESSION not in value:
            own = "A function of your own is written as package.module:function or file.py:function"
            raise ConfigError(f"{at} is {value!r}: {nearest(value, BUILT_IN)} {own}.")
        return cls(f"{Path(place).absolute()}:{function}" if place.endswith(".py") else value)

    def plain(self) -> str:
        return self.name


def reference(given: Any) -> str:
    """`package.module:name`, by which another process can import this class or function; empty if it can't."""
    module, name = getattr(given, "__module__", None), getattr(given, "__qualname__", "")
    if (
        not module
        or module in SCRIPTS
        or not name.isidentifier()
        or getattr(sys.modules.get(module), name, 0) is not given
    ):
        return ""
    try:
        return f"{module}:{name}" if importlib.util.find_spec(module) else ""
    except (ImportError, ValueError):
        return ""


def imported(name: str, at: str) -> Callable[..., Any]:
    """The function or class that ``package.module:name`` or ``file.py:name`` refers to; `at` is the setting."""
    place, _, name_there = name.rpartition(":")
    said = f"{at} is {name!r}"
    if name.startswith(SESSION):
        how = f"pass it again, as in headwise.resume(folder, augment={name_there})"
        raise ConfigError(f"{at} is {name_there}, defined in a notebook or script: {how}.")
    try:
        module = _file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{said}, but there is no module {error.name!r}.") from error
    except Exception as error:  # another's file can raise anything
        raise ConfigError(f"{said}, which can't be imported: {type(error).__name__}: {error}.") from error
    found = getattr(module, name_there, None)
    if not callable(found):
        raise ConfigError(f"{said}, but {place} has no function or class {name_there!r}.")
    return found


def _file(path: Path) -> Any:
    name = f"headwise_network_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    return sys.modules.get(name) or load_file(path, name)


def load_file(path: Path, name: str) -> Any:
    """Run a user's file as a module of this name; its dataclasses look for it among the modules meanwhile."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
