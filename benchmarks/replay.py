"""Runs the first rounds of published cells again: every evaluation must be the one in docs/results/claims/cells.

    python benchmarks/replay.py 20                          # 20 rounds of each cell
    python benchmarks/replay.py 20 fedgmh-mnist fedftha     # of those whose names begin like this

It needs the public data sets (`HEADWISE_DATA`). Its exit code is 1 if anything differs, 2 if it can't compare.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from paper_queue import CLAIMS, curves_of, is_collected, list_cells

from headwise.app.launch import run_or_resume
from headwise.errors import HeadwiseError
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


def main(arguments: list[str]) -> int:
    """Replay the cells, a line for each; 1 if one differs, 2 if nothing could be compared."""
    count, *names = arguments or [""]
    cells = [listed.cell for listed in list_cells() if is_collected(listed.cell.folder)]
    chosen = [cell for cell in cells if cell.folder.startswith(tuple(names) or ("",))]
    if not count.isdecimal() or not int(count) or not chosen:
        print(__doc__ if not names else f"No published cell's name begins with {', '.join(names)}.", file=sys.stderr)
        return 2
    worst = 0
    for cell in chosen:
        try:
            published, same = replay(cell, int(count))
        except HeadwiseError as error:
            print(error, file=sys.stderr)
            return 2
        worst = max(worst, 2 if not published else int(same < published))
        print(f"{cell.folder}: {same} of {published} evaluations are the same", flush=True)
    return worst


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
