"""A comparison.json from elsewhere names only runs in its own folder, or is refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headwise.errors import RunError
from headwise.runs.comparison import read_comparison


def write(folder: Path, content: Any) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "comparison.json").write_text(json.dumps(content))


def listing(*runs: str) -> dict[str, Any]:
    return {"methods": [{"method": "mine.py", "runs": [{"run": run} for run in runs]}]}


def cell(*runs: Any, settings: Any = None) -> dict[str, Any]:
    return {"grid": [{"method": "fedavg", "federation": {}, "settings": settings or {}, "runs": runs}]}


def test_listed_runs_are_those_in_the_folder_wherever_it_was(tmp_path: Path) -> None:
    write(tmp_path / "out", listing("elsewhere/out/a", "/etc/b"))
    [row] = read_comparison(tmp_path / "out")
    assert row == ("mine.py", [tmp_path / "out" / "a", tmp_path / "out" / "b"], None)
    write(tmp_path / "out", cell("x/out/lr/a", settings={"lr": 0.1}))
    [row] = read_comparison(tmp_path / "out")
    assert (row.method, row.runs) == ("fedavg", [tmp_path / "out" / "lr" / "a"])
    assert row.cell is not None
    assert row.cell["settings"] == {"lr": 0.1}
    assert read_comparison(tmp_path) == []


@pytest.mark.parametrize(
    "content",
    [
        3,
        [],
        {},
        {"methods": []},
        {"methods": 3},
        {"methods": [{"method": "m"}]},
        {"methods": [{"method": 3, "runs": []}]},
        {"grid": [{"method": "m", "runs": ["x/out/lr/a"]}]},
        cell(3),
        cell(),
        cell("../.."),
        cell("x/../../y"),
        cell("x/out/lr/a", settings={"lr": [0.1]}),
        listing(".."),
        listing(""),
        listing("/"),
        listing("a\0b"),
        listing("\ud800"),
        listing("link"),
        listing("circle"),
        {"methods": [{"method": "\ud800", "runs": [{"run": "a"}]}]},
    ],
)
def test_anything_else_is_damage(content: Any, tmp_path: Path) -> None:
    write(tmp_path / "out", content)
    (tmp_path / "out" / "link").symlink_to(tmp_path)
    (tmp_path / "out" / "circle").symlink_to("circle")
    with pytest.raises(RunError, match=r"comparison.json is damaged"):
        read_comparison(tmp_path / "out")
