"""The comparison.json of a folder: which runs below it belong to its last comparison, and the names of their rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from ..disk.files import read_json
from ..disk.paths import is_text
from ..errors import RunError
from .files import check, judge_of

COMPARISON = "comparison.json"
_POINT = {str: str | float | int | None}
SHAPE = judge_of({
    "methods?": [{"method": str, "runs": [{"run": str}]}],
    "grid?": [{"method": str, "federation": _POINT, "settings": _POINT, "runs": [str]}],
})  # fmt: skip


class ListedRow(NamedTuple):
    """A method of the comparison, or one cell of its grid."""

    method: str
    runs: list[Path]
    """folders"""
    cell: dict[str, Any] | None = None
    """its entry in the grid, if there is one"""


def read_comparison(folder: Path) -> list[ListedRow]:
    """The rows of the folder's comparison; empty without one.

    Only the last parts of the listed paths count, because the folder may have moved since.
    """
    path = folder / COMPARISON
    if not path.is_file():
        return []
    content = read_json(path)
    check(content, SHAPE, path)
    rows = [
        ListedRow(row["method"], [folder / Path(run["run"]).name for run in row["runs"]])
        for row in content.get("methods", [])
    ]
    for cell in content.get("grid", []):
        runs = [folder / run.parent.name / run.name for run in map(Path, cell["runs"])]
        rows.append(ListedRow(cell["method"], runs, cell))
    inside = all(_is_inside(run, folder) for row in rows for run in row.runs)
    if not inside or not rows or not all(row.runs and is_text(row.method) for row in rows):
        raise RunError(f"{path} is damaged: it does not list the runs of the comparison.")
    return rows


def _is_inside(run: Path, folder: Path) -> bool:
    """Whether a listed folder is really below this one, after following symbolic links."""
    try:
        return is_text(str(run)) and folder.resolve() in run.resolve().parents
    except (OSError, RuntimeError):  # links in a circle
        return False
