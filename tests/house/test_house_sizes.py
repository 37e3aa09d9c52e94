"""Small functions, and files about one thing: what can't be read at one sitting is not read."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from rooms import FILES, name_of, tree

METHODS = [p for p in FILES if p.parent.name == "methods" and p.stem != "__init__"]
FUNCTIONS = [(p, n) for p in FILES for n in ast.walk(tree(p)) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]


def lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Without the docstring, which a public function may need a screen for."""
    first = node.body[0]
    described = ast.get_docstring(node) is not None
    docstring = (first.end_lineno or 0) - first.lineno + 1 if described else 0
    return (node.end_lineno or 0) - node.lineno + 1 - docstring


def length(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_can_be_read_at_one_sitting(path: Path) -> None:
    assert length(path) <= 600


@pytest.mark.parametrize("path", METHODS, ids=name_of)
def test_methods_are_short(path: Path) -> None:
    """About a hundred lines below the card; FedGMH, with all the rules of its paper and its code, is the longest."""
    below = {p: length(p) - (tree(p).body[0].end_lineno or 0) for p in METHODS}
    assert below[path] >= 15
    assert length(path) <= 190
    assert sum(n <= 125 for n in below.values()) >= 0.9 * len(METHODS)


def test_functions_are_short() -> None:
    long = [f"{name_of(p)}:{n.lineno} {n.name}" for p, n in FUNCTIONS if lines(n) > 60]
    assert not long


def test_nine_functions_in_ten_are_very_short() -> None:
    assert sum(lines(n) <= 25 for _, n in FUNCTIONS) >= 0.9 * len(FUNCTIONS)


def test_there_is_something_to_measure() -> None:
    assert len(FILES) > 50
    assert len(METHODS) >= 7
    assert len(FUNCTIONS) > 300
