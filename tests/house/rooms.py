"""The source as text and trees, for the tests that hold the house up."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / "src" / "headwise"
FILES = sorted(HOME.rglob("*.py"))


def name_of(path: Path) -> str:
    """The path below src/headwise, for messages and ids."""
    return path.relative_to(HOME).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def room_of(module: str) -> str:
    """The first part of a module's name below headwise: ``headwise.engine.driver`` is in the room ``engine``."""
    parts = module.split(".")
    return parts[1] if parts[0] == "headwise" and len(parts) > 1 else parts[0]


def imports(path: Path) -> Iterator[str]:
    """The full names of all modules that a file imports, wherever in it and however it says so."""
    package = ["headwise", *path.relative_to(HOME).with_suffix("").parts]
    if package[-1] == "__init__":  # a package imports relative to itself
        package = [*package[:-1], ""]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module.startswith("headwise"):
                yield from (_target(module, alias.name) for alias in node.names if alias.name != "__version__")
            else:
                yield module


def _target(module: str, name: str) -> str:
    """`from headwise.runs import query` imports a module, `from headwise.params import mean` a name of one."""
    parts = module.split(".")[1:]
    found = HOME.joinpath(*parts, name)
    return f"{module}.{name}" if found.with_suffix(".py").exists() or found.is_dir() else module
