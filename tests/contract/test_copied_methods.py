"""The file of each built-in method works anywhere: it imports nothing of Headwise but `headwise.authoring`."""

from __future__ import annotations

import ast
import inspect
import shutil
import sys
from pathlib import Path

import pytest

import headwise
from headwise import authoring
from headwise.app import registry
from headwise.cli import main
from headwise.settings.names import list_names
from killed_runs import bits

METHODS = {name: Path(inspect.getfile(registry.find("method", name))) for name in list_names("method")}
SMALL = "--data synthetic:160:4:6:sites=4 --partition natural --model mlp:8 --rounds 2 --batch 10 --ratio 0.75 --quiet"
EVERYTHING = "evaluate.moments=['pre','post','global']"


def imported(path: Path) -> list[tuple[str, list[str]]]:
    """Modules of Headwise that a file imports, and the names that it takes from them."""
    nodes = [n for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.ImportFrom)]
    return [(n.module or "", [a.name for a in n.names]) for n in nodes if n.level or n.module.startswith("headwise")]


@pytest.mark.parametrize("name", METHODS)
def test_methods_import_what_authors_may(name: str) -> None:
    [(module, names)] = imported(METHODS[name])
    assert module == "headwise.authoring"
    assert names == sorted(names)
    assert {*names} <= {*authoring.__all__}


def test_authors_find_no_more_than_methods_need() -> None:
    """And each name has one home: `headwise` is for those who train."""
    used = {name for path in METHODS.values() for _, names in imported(path) for name in names}
    assert used == {*authoring.__all__}
    assert sorted(authoring.__all__) == authoring.__all__
    assert not used & {*headwise.__all__}


@pytest.mark.parametrize("name", METHODS)
def test_a_copy_gives_the_same_bits(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    copy = shutil.copy(METHODS[name], tmp_path)
    monkeypatch.setattr(sys, "argv", ["headwise"])
    for method, out in ((name, "built-in"), (f"./{Path(copy).name}", "copied")):
        with pytest.raises(SystemExit) as ended:
            main(["run", "--method", method, *SMALL.split(), "--set", EVERYTHING, "--out", out])
        assert ended.value.code in (0, None)
    assert bits(tmp_path / "built-in") == bits(tmp_path / "copied")
