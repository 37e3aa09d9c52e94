"""Settings that name something to import: a `Choice` of a method, model, data set or partition, an `Augmentation`.

Here they are names and options only; `app.registry` imports what they refer to.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ..errors import ConfigError, nearest
from .fields import Parsed, build, convert, dump, literal
from .names import ROOMS, Kind, is_named, list_names, name_of

OWN = "own"
"""the source, and the split, of a user's own data"""
NATURAL = (OWN, "heart-disease", "office-caltech10")
"""sources with natural clients (hospitals, cameras), which are divided only on request"""
NETWORK = "network"
"""the name of a choice that is a user's own network; not a model's name, because sites run only Headwise's own"""
BUILT_IN = ("flip", "crop", "erase")
"""names of augmentations"""
SCRIPTS = ("__main__", "__mp_main__")
"""modules that other processes can't import"""
SESSION = "session:"
"""prefix of a function that exists only in the Python session that passed it"""


@dataclass(frozen=True)
class Choice(Parsed):
    """A method, model, data set or partition with its options: ``"fedrep"``, ``"dirichlet:0.1"`` or a table."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    values: tuple[str, ...] = ()
    """positional options, in field order"""
    given: Any = field(default=None, repr=False)
    """a network that was passed as an object"""

    @classmethod
    def parse(cls, value: Any, at: str) -> Self:
        """From a string, a table with a name, an instance, or a network as an object."""
        if isinstance(value, cls):
            return value
        if isinstance(value, type) and dataclasses.is_dataclass(value) and at in ROOMS:
            value = build(value, {}, at)
        if at.split("[")[0] in ("model", "server_model") and (own := _parse_own_network(value)):
            return cls(NETWORK, *own)
        if isinstance(value, str) and at == "data" and value.endswith(".toml"):  # a path may contain colons
            return cls(OWN, {"path": value})
        if isinstance(value, str) and value:
            name, *rest = value.split(":")
            named = dict(part.split("=", 1) for part in rest if "=" in part)
            options = {k.replace("-", "_"): literal(v) for k, v in named.items()}
            return cls(name, options, tuple(part for part in rest if "=" not in part))
        if isinstance(value, Mapping) and isinstance(value.get("name"), str):
            options = {k: v for k, v in value.items() if k not in ("name", "values")}
            return cls(value["name"], options, convert(value.get("values", ()), tuple[str, ...], f"{at}.values"))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return cls(name_of(_kind(at), type(value)), dump(value))
        network = ", a network (torch.nn.Module)" if "model" in at else ""
        text = repr(value) if isinstance(value, (str, int, float, Mapping)) else f"a {type(value).__name__}"
        raise ConfigError(f"{at} is {text[:200]}, but must be a name{network} or a table with a name.")

    def to_plain(self) -> dict[str, Any]:
        return {"name": self.name, **self.options, **({"values": list(self.values)} if self.values else {})}


@dataclass(frozen=True)
class Augmentation(Parsed):
    """A change to training samples: one of ours by its name, or a user's own function."""

    name: str
    given: Any = field(default=None, repr=False, compare=False)
    """the user's function"""

    @property
    def is_built_in(self) -> bool:
        return self.name in BUILT_IN

    @property
    def is_of_session(self) -> bool:
        """Whether the function exists only in the Python session that passed it."""
        return self.name.startswith(SESSION)

    @property
    def title(self) -> str:
        return self.name.removeprefix(SESSION)

    @classmethod
    def parse(cls, value: Any, at: str) -> Self:
        if callable(value):
            name = reference(value)
            title = str(getattr(value, "__name__", type(value).__name__))
            return cls(name) if name else cls(f"{SESSION}{title}", value)
        if not isinstance(value, str):
            raise ConfigError(f"{at} is a {type(value).__name__}, but must be {', '.join(BUILT_IN)} or a function.")
        place, colon, function = value.rpartition(":")
        if not (colon and place and function.isidentifier()) and value not in BUILT_IN and SESSION not in value:
            own = "A function of your own is written as package.module:function or file.py:function"
            raise ConfigError(f"{at} is {value!r}: {nearest(value, BUILT_IN)} {own}.")
        return cls(f"{Path(place).absolute()}:{function}" if place.endswith(".py") else value)

    def to_plain(self) -> str:
        return self.name


def reference(given: Any) -> str:
    """`package.module:name`, by which another process can import this class or function; empty if it can't."""
    module = getattr(given, "__module__", None)
    name = getattr(given, "__qualname__", "")
    if not module or module in SCRIPTS or not name.isidentifier():
        return ""
    if getattr(sys.modules.get(module), name, None) is not given:
        return ""
    try:
        return f"{module}:{name}" if importlib.util.find_spec(module) else ""
    except (ImportError, ValueError):
        return ""


def _parse_own_network(value: Any) -> tuple[dict[str, Any], tuple[str, ...], Any] | None:
    """Options, positional options and object of a choice; None if this is not a user's own network."""
    if isinstance(value, str):
        place, _, rest = value.partition(":")
        name, *more = rest.split(":")
        factory = _factory_in_file(place, name) if place.endswith(".py") else _factory_in_module(place, name)
        return ({"factory": factory, **_head_option(value, more)}, (), None) if factory else None
    return ({}, (), value) if callable(value) else None


def _head_option(value: str, more: list[str]) -> dict[str, str]:
    if wrong := [part for part in more if not part.startswith("head=")]:
        raise ConfigError(f"model is {value!r}, but after the factory only head=LAYER may follow, not {wrong[0]!r}.")
    return dict(part.split("=", 1) for part in more)


def _factory_in_module(place: str, name: str) -> str:
    """The name of a factory in a module; empty if this is one of our models with an option."""
    dotted = all(part.isidentifier() for part in place.split("."))
    if not dotted or not name.isidentifier() or place in list_names("model"):
        return ""
    try:
        return f"{place}:{name}" if "." in place or importlib.util.find_spec(place) else ""
    except (ImportError, ValueError):
        return ""


def _factory_in_file(place: str, name: str) -> str:
    """The name of a factory in a file; empty if the file defines a `Model`, whose options follow its name."""
    path = Path(place)
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError):
        return ""  # the registry says what is wrong
    defined = [n for n in body if isinstance(n, (ast.ClassDef, ast.FunctionDef))]
    main = next((n for n in defined if is_named(n.name, path.stem)), None)
    if not name:
        is_module = isinstance(main, ast.ClassDef) and any(ast.unparse(b).endswith("Module") for b in main.bases)
        return f"{path.resolve()}:{main.name}" if main and (is_module or isinstance(main, ast.FunctionDef)) else ""
    known = [n.name for n in defined] + [ast.unparse(t) for n in body if isinstance(n, ast.Assign) for t in n.targets]
    if name in known:
        return f"{path.resolve()}:{name}"
    if main is None and name.isidentifier():
        raise ConfigError(f"model is {f'{place}:{name}'!r}, but {place} defines no {name}: {nearest(name, known)}")
    return ""


def _kind(at: str) -> Kind:
    name = at.split("[")[0].removeprefix("server_")
    assert name in ROOMS
    return name  # pyright: ignore[reportReturnType]
