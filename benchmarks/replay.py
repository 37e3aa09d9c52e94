"""Runs the first rounds of published cells again: every evaluation must be the one in docs/results/claims/cells.

    python benchmarks/replay.py 20                          # 20 rounds of each cell
    python benchmarks/replay.py 20 fedgmh-mnist fedftha     # of those whose names begin like this

It needs the public data sets (`HEADWISE_DATA`). Its exit code is 1 if anything differs.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from paper_queue import CLAIMS, curves_of, is_collected, list_cells

from headwise.app.launch import run_or_resume
from headwise.papers.cells import Cell
from headwise.runs.query import Run


def replay(cell: Cell, rounds: int) -> tuple[int, int]:
    """How many evaluations of these rounds are published, and how many of them are the same here."""
    experiment = dataclasses.replace(cell.experiment, rounds=min(rounds, cell.experiment.rounds))
    with TemporaryDirectory() as home:
        folder = Path(home) / cell.folder
        run_or_resume(experiment, folder)
        ours = set(curves_of(Run(folder)))
    lines = (CLAIMS / "cells" / f"{cell.folder}.csv").read_text().splitlines()[1:]
    published = [line for line in lines if int(line.split(",")[0]) <= rounds]
    return len(published), sum(line in ours for line in published)


def main(rounds: int, names: tuple[str, ...]) -> int:
    """Replay the cells, a line for each; 1 if one differs, or has nothing to compare."""
    different = 0
    for _, cell in list_cells():
        if is_collected(cell.folder) and cell.folder.startswith(names or ("",)):
            published, same = replay(cell, rounds)
            different += same < published or not published
            print(f"{cell.folder}: {same} of {published} evaluations are the same", flush=True)
    return int(different > 0)


if __name__ == "__main__":
    if not sys.argv[1:2] or not sys.argv[1].isdigit():
        raise SystemExit(__doc__)
    raise SystemExit(main(int(sys.argv[1]), tuple(sys.argv[2:])))
