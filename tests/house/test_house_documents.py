"""What is written about the code, in it and beside it, is true."""

from __future__ import annotations

import ast
import dataclasses
import re
import runpy
import sys
from pathlib import Path

import pytest
from rooms import FILES, HOME, ROOT, name_of, tree

import headwise
from headwise.app import registry
from headwise.settings.experiment import Experiment
from headwise.settings.fields import field_help, field_types
from headwise.settings.names import ROOMS, Kind, list_names

METHODS = [p for p in FILES if p.parent.name == "methods" and p.stem not in ("__init__", "standalone")]
CLASSES = [(kind, name) for kind in ROOMS for name in list_names(kind)]


def test_public_names_are_said_three_times_the_same() -> None:
    """`__all__`, the imports that type checkers see and the table of homes."""
    home = HOME / "__init__.py"
    guarded = next(n for n in tree(home).body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")
    seen = {(n.module, a.name) for n in guarded.body if isinstance(n, ast.ImportFrom) for a in n.names}
    homes = {(room, name) for name, room in headwise._HOMES.items()}
    assert seen == homes
    assert sorted(name for _, name in homes) == headwise.__all__ == sorted(headwise.__all__)


@pytest.mark.parametrize("name", headwise.__all__)
def test_public_name_is_there_and_documented(name: str) -> None:
    assert getattr(headwise, name).__doc__


def test_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'chekc_method'"):
        _ = headwise.chekc_method


def test_windows_is_told_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ImportError, match="on Windows, install it in WSL"):
        runpy.run_path(str(HOME / "__init__.py"))


def headings() -> list[str]:
    return re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)


def test_version_is_the_newest_in_the_changelog() -> None:
    first, newest = headings()[:2]
    assert first == "Unreleased"
    assert newest == headwise.__version__


def test_readme_names_files_that_exist() -> None:
    links = re.findall(r"\]\(([^)#]+?)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


@pytest.mark.parametrize("path", METHODS, ids=name_of)
def test_method_cites_its_equations(path: Path) -> None:
    """Beside the code, not only in the header: the first lines are the citation."""
    body = path.read_text(encoding="utf-8").split("from headwise.authoring", 1)[1]
    assert re.search(r"(#|\"\"\").*\b(Eqs?\. \(|Algorithm \d|Alg\. \d|Section \d)", body)


@pytest.mark.parametrize(("kind", "name"), CLASSES)
def test_every_option_has_help(kind: Kind, name: str) -> None:
    cls = registry.find(kind, name)
    assert [f for f in field_types(cls) if not field_help(cls).get(f)] == []


def test_every_setting_has_help() -> None:
    tables = {"train", "sampling", "evaluate", "stop", "faults", "robust", "privacy", "secure", "engine"}
    tables |= {"origin", "drift"}
    assert field_types(Experiment).keys() >= tables
    silent = [f for f in field_types(Experiment) if f not in tables and not field_help(Experiment).get(f)]
    for name in tables:
        kind = field_types(Experiment)[name]
        assert dataclasses.is_dataclass(kind)
        silent += [f"{name}.{f}" for f in field_types(kind) if not field_help(kind).get(f)]
    assert silent == []


@pytest.mark.parametrize(("kind", "name"), CLASSES)
def test_every_entry_can_be_listed(kind: Kind, name: str) -> None:
    entry = registry.read_card(kind, name)
    assert entry.summary.endswith(".")
    assert entry.title


@pytest.mark.parametrize("path", METHODS, ids=name_of)
def test_card_says_what_was_read(path: Path) -> None:
    """The paper, its abstract, its authors' code or that of others: a link to a paper alone does not tell."""
    card = " ".join((ast.get_docstring(tree(path)) or "").split())
    words = ("Read: ", "[Aa]s its authors' code", r"authors' code \(https", "From .* abstract", "were at hand")
    assert re.search("|".join(words), card)
