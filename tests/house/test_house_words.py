"""One noun per thing: the glossary names what there is, and nothing has the name of something else."""

from __future__ import annotations

import ast
import pkgutil
import re
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest
from rooms import FILES, HOME, ROOT, name_of, tree

GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
WAY = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NAMES = re.findall(r"^\| [^|]+ \| `([\w.]+)` \|", GLOSSARY, re.MULTILINE)
STEPS = re.findall(r"`((?!headwise\.)(?:\w+\.)+\w+)`", WAY)
RETIRED = {
    "Ground",
    "Told",
    "Heard",
    "Known",
    "Made",
    "Place",
    "Parcel",
    "Visit",
    "Replies",
    "Belonging",
    "Post",
    "Mail",
}
"""names that classes had, and that others were confused with"""
CLASSES = [(n.name.lstrip("_"), p) for p in FILES for n in ast.walk(tree(p)) if isinstance(n, ast.ClassDef)]
ENDINGS = ("s", "es", "ed", "ing", "er")
FORBIDDEN = ("found", "said", "told", "heard", "asked", "wanted", "passed", "there", "this", "that", "it", "thing")

NOT_PARTICIPLES = {"seed", "shared", "signed", "weighted"}
"""a verb; what methods share, by the name that they define; a test of signed ranks; means, which docs name"""


@pytest.mark.parametrize("name", dict.fromkeys([*NAMES, *STEPS]))
def test_what_the_pages_name_is_there(name: str) -> None:
    assert pkgutil.resolve_name(f"headwise.{name}") is not None


def test_the_pages_name_something() -> None:
    assert len(NAMES) > 35

    assert len(STEPS) > 20


def test_no_class_name_is_used_twice() -> None:
    """But in methods, each of which has records of its own."""
    counts = Counter(name for name, path in CLASSES if path.parent.name != "methods")
    assert [name for name, times in counts.items() if times > 1] == []


def test_retired_words_name_nothing() -> None:
    assert [(name, name_of(path)) for name, path in CLASSES if name in RETIRED and path.parent.name != "methods"] == []


def test_no_two_files_of_a_room_differ_in_an_ending_only() -> None:
    rooms: dict[str, list[str]] = {}
    for path in FILES:
        rooms.setdefault(name_of(path.parent) if path.parent != HOME else "", []).append(path.stem)
    alike = [
        (r, a, b)
        for r, stems in rooms.items()
        for a, b in combinations(sorted(stems), 2)
        if b[len(a) :] in ENDINGS and b.startswith(a)
    ]
    assert alike == []


def test_no_identifier_is_a_word_that_names_nothing() -> None:
    """Such as `found`, `said` or `it`: a value is named after what it is."""
    assert [f"{path.name}: {name}" for path, name in identifiers() if name.strip("_").lower() in FORBIDDEN] == []


def test_no_function_is_named_by_a_participle() -> None:
    """Functions are verbs; properties are values, and `testing` names its checks by what they claim."""
    names = [
        f"{path.name}: {node.name}"
        for path in FILES
        if path.parent.name != "testing"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("__")
        and not any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
        and (first := node.name.strip("_").split("_")[0]).endswith("ed")
        and first not in NOT_PARTICIPLES
    ]
    assert names == []


def identifiers() -> Iterator[tuple[Path, str]]:
    """Everything that source and benchmarks give a name: variables, parameters, functions, classes and imports."""
    for path in [*FILES, *(ROOT / "benchmarks").glob("*.py")]:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield path, node.id
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                yield path, node.attr
            elif isinstance(node, ast.arg):
                yield path, node.arg
            elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield path, node.name
            elif isinstance(node, ast.alias) and node.asname:
                yield path, node.asname


ISE = re.compile(
    r"(normal|standard|optim|initial|regular|minim|maxim|recogn|general|personal|serial|random)is(e|ing|ation)"
)
AMERICAN = re.compile(r"(?<![-\w])(behavior|neighbor|favor|labeled|labeling|modeled|modeling|traveled|analyz)")
PROSE = (".md", ".py", ".toml", ".j2", ".ipynb")
FOLDERS = ("src", "docs", "tests", "benchmarks", "examples", "scripts")
WRITTEN = [p for p in (*ROOT.glob("*"), *(p for f in FOLDERS for p in (ROOT / f).rglob("*"))) if p.suffix in PROSE]


def test_words_have_one_spelling() -> None:
    """That of Oxford: behaviour and centre, but normalize and personalize."""
    read = [path for path in WRITTEN if path.name != Path(__file__).name]
    texts = {path: f"{path.stem} {path.read_text(encoding='utf-8')}".lower() for path in read}
    assert len(texts) > 500
    wrong = [(str(path), m[0]) for path, text in texts.items() for m in (ISE.search(text), AMERICAN.search(text)) if m]
    assert wrong == []
