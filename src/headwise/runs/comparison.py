"""The comparison.json of a folder: which runs below it belong to its last comparison, and the names of their rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..disk.files import read_json
from ..disk.paths import is_text
from ..errors import RunError
from .files import check, judge_of

COMPARISON = "comparison.json"
SHAPE = judge_of({
    "methods?": [{"method": str, "runs": [{"run": str}]}],
    "grid?": [{"method": str, "runs": [str]}],
})  # fmt: skip


def read_comparison(folder: Path) -> dict[Path, str]:
    """The name of each listed run's row, by the run's folder; empty without a comparison.

    Paths are those of the day it was written: only their last parts count, since people move folders.
    """
    path = folder / COMPARISON
    if not path.is_file():
        return {}
    content = _read(path)
    names: dict[Path, str] = {}
    for row in content.get("methods", []):
        names |= {folder / Path(run["run"]).name: row["method"] for run in row["runs"]}
    for cell in content.get("grid", []):
        runs = [Path(run) for run in cell["runs"]]
        names |= {folder / run.parent.name / run.name: cell["method"] for run in runs}
    if not names or not all(is_text(name) and _is_inside(run, folder) for run, name in names.items()):
        raise RunError(f"{path} is damaged: it does not say which runs belong to the comparison.")
    return names


def holds_grid(folder: Path) -> bool:
    path = folder / COMPARISON
    return path.is_file() and "grid" in _read(path)


def _read(path: Path) -> dict[str, Any]:
    content = read_json(path)
    check(content, SHAPE, path)
    return content


def _is_inside(run: Path, folder: Path) -> bool:
    """Whether a listed folder is really below this one, also behind symbolic links."""
    try:
        return is_text(str(run)) and folder.resolve() in run.resolve().parents
    except (OSError, RuntimeError):  # links in a circle
        return False
