"""Finds methods, models, data sets and partitions by file name; listing them imports nothing heavy."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from ..errors import ConfigError, closest, nearest
from .fields import help_in
from .functions import load_file

Kind = Literal["method", "model", "data", "partition"]

HOME = Path(__file__).parents[1]
ROOMS: dict[Kind, str] = {
    "method": "methods",
    "model": "models",
    "data": "data/sources",
    "partition": "data/partition",
}


@dataclass(frozen=True)
class Card:
    """What a file says about itself, parsed without importing it."""

    name: str
    title: str
    """first paragraph of the module's docstring"""
    summary: str
    """first line of the class's docstring"""
    facts: dict[str, Any]
    """the class's literal class variables (family, travels, stays, ...)"""
    fields: dict[str, str]
    """its options with their help texts"""
    bases: tuple[str, ...]
    functions: tuple[str, ...]


def names(kind: Kind) -> list[str]:
    """All names of this kind, including installed plug-ins."""
    return sorted({*_files(kind), *_plugins(kind)})


def included(kind: Kind) -> list[str]:
    """Those that Headwise itself has, without plug-ins."""
    return sorted(_files(kind))


def entry(kind: Kind, name: str) -> Card:
    path, called = _files(kind).get(name), name.replace("-", "_")
    if path is None:
        cls = find(kind, name)
        path, called = Path(sys.modules[cls.__module__].__file__ or ""), cls.__name__
    tree = ast.parse(path.read_text(encoding="utf-8"))
    node = next(n for n in tree.body if isinstance(n, ast.ClassDef) and _is_named(n.name, called))
    summary = (ast.get_docstring(node) or "").split("\n")[0]
    title = (ast.get_docstring(tree) or "").split("\n\n")[0].replace("\n", " ")
    bases = tuple(ast.unparse(b).split("[")[0] for b in node.bases)
    functions = tuple(n.name for n in node.body if isinstance(n, ast.FunctionDef))
    return Card(name, title, summary, _facts(node), help_in(node), bases, functions)


def find(kind: Kind, name: str) -> type[Any]:
    """The class with this name: built in, from a plug-in, or in a user's own `path/to/file.py`."""
    if name.endswith(".py"):
        return _from_file(kind, Path(name))
    if name in _plugins(kind):
        return _from_plugin(kind, name)
    if name not in _files(kind):
        if kind == "data":
            _refuse_path(Path(name))
        raise ConfigError(f"{kind} is {name!r}, which is not known: {nearest(name, names(kind))}")
    stem = name.replace("-", "_")
    return _main_class(importlib.import_module(f"{_package(kind)}.{stem}"), stem)


def _refuse_path(path: Path) -> None:
    """Say what is wrong with data that is a path, or looks like one."""
    if path.exists():
        how = f"headwise data init {path} writes a data.toml, which data takes"
        raise ConfigError(f"data is {str(path)!r}, which is not a data set but a path: {how}.")
    beside = [p.name for p in path.parent.glob("*.toml")]
    near = "" if closest(str(path), names("data")) else closest(path.name, beside)
    if near or path.suffix or len(path.parts) > 1:
        hint = (
            f"did you mean '{path.with_name(near)}'?" if near else "headwise data init makes a data.toml from a table."
        )
        raise ConfigError(f"data is {str(path)!r}, but there is no such file: {hint}")


def name_of(kind: Kind, cls: type[Any]) -> str:
    """The inverse of `find`."""
    room, _, stem = cls.__module__.rpartition(".")
    if room == _package(kind):
        return stem.replace("_", "-")
    for name, plugin in _plugins(kind).items():
        if plugin.value == f"{cls.__module__}:{cls.__qualname__}":
            return name
    path = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if path and _is_named(cls.__name__, Path(path).stem):
        return str(Path(path).resolve())
    raise ConfigError(
        f"{kind} is the class {cls.__qualname__}, but must be defined in its own file, named after the class, so that "
        f"workers and later runs can import it."
    )


def _package(kind: Kind) -> str:
    return f"headwise.{ROOMS[kind].replace('/', '.')}"


@cache
def _files(kind: Kind) -> dict[str, Path]:
    """Files that define a class of the same name; helpers such as `split` do not. Scanned as text, for speed."""
    found: dict[str, Path] = {}
    for path in sorted((HOME / ROOMS[kind]).glob("*.py")):
        classes = re.findall(r"^class (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        if any(_is_named(c, path.stem) for c in classes) and path.stem != "base":
            found[path.stem.replace("_", "-")] = path
    return found


@cache  # takes milliseconds, and a table asks a thousand times
def _plugins(kind: Kind) -> dict[str, importlib.metadata.EntryPoint]:
    """What other packages offer; they can't take over a built-in name."""
    group = f"headwise.{'data' if kind == 'data' else kind + 's'}"
    return {p.name: p for p in importlib.metadata.entry_points(group=group) if p.name not in _files(kind)}


def _from_plugin(kind: Kind, name: str) -> type[Any]:
    point = _plugins(kind)[name]
    try:
        return point.load()
    except Exception as error:  # another package can fail in any way
        package = point.dist.name if point.dist else point.value
        said = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{kind} is {name!r} of the package {package}, which can't be imported: {said}.") from error


def _from_file(kind: Kind, path: Path) -> type[Any]:
    if not path.is_file():
        raise ConfigError(f"{kind} is {str(path)!r}, but there is no such file.")
    try:
        module = load_file(path, f"headwise_user_{path.stem}")
    except SyntaxError as error:
        raise ConfigError(f"{kind} is {str(path)!r}, which is not valid Python: {error}.") from error
    except ImportError as error:
        if "relative import" not in str(error):
            raise
        raise ConfigError(
            f"{kind} is {str(path)!r}, which has a relative import: write 'from headwise.models.base import ...' "
            f"instead of 'from .base import ...', since the file is not in Headwise's folder."
        ) from error
    return _main_class(module, path.stem)


def _main_class(module: Any, stem: str) -> type[Any]:
    for name, value in vars(module).items():
        if isinstance(value, type) and _is_named(name, stem) and value.__module__ == module.__name__:
            return value
    raise ConfigError(f"{module.__file__} must define a class named after the file ({stem}).")


def _is_named(cls: str, stem: str) -> bool:
    return cls.lower() == stem.replace("_", "").lower()


def _facts(node: ast.ClassDef) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.value is not None:
            if not ast.unparse(item.annotation).startswith("ClassVar"):
                continue
            try:
                found[item.target.id] = ast.literal_eval(item.value)
            except ValueError:  # not a literal, so a listing can't show it
                continue
    return found
