"""Every script and notebook in examples/ runs as it stands, and is short."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SAYS = {
    "compare_methods.py": "the page: runs/compare-synthetic/report.html",
    "hospitals.py": "va's model says: ['ill', 'well']",
    "new_client.py": "it has 4 kinds of customers",
    "own_arrays.py": "rome says of three new patients",
    "own_network.py": "farm 4 expects",
    "slow_head.py": "keep 0.9",
}
SHOWS = {
    "dataframe.ipynb": "['ill' 'well']",
    "write_a_method.ipynb": "fast_head.py, line",
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_each_is_tested() -> None:
    assert {p.name for p in EXAMPLES.glob("*.py")} == SAYS.keys()
    assert {p.name for p in EXAMPLES.glob("*.ipynb")} == SHOWS.keys()


@pytest.mark.parametrize("name", SAYS)
def test_script_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) <= 60
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert SAYS[name] in capsys.readouterr().out


@pytest.mark.parametrize("name", SHOWS)
def test_notebook_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its code cells in order, in one namespace; stored without outputs, which would grow old."""
    cells = json.loads((EXAMPLES / name).read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["outputs"] for cell in code] == [[]] * len(code)
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(code):
        exec(compile("".join(cell["source"]), f"{name}, cell {number}", "exec"), names)
    assert SHOWS[name] in capsys.readouterr().out
