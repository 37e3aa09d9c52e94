"""Rounds of FedAvg in several checkouts, which take turns: did a change make anything slower?

    python benchmarks/versions.py ../before .                  # two checkouts, W1 to W5
    python benchmarks/versions.py ../before . W5 --turns 15    # one workload, more turns
    HEADWISE_NATIVE=off python benchmarks/versions.py ...      # on a machine without native kernels

Each checkout runs its own code in its own process. Printed are medians per round, of CPU time, which other programs
hardly disturb, and of wall time; then their ratios to the first checkout's.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

NAMES = ("W1", "W2", "W3", "W4", "W5")
ROUNDS = {"W5": 20}
"""rounds of a turn where not one: those of W5 are short"""
WORKER = """
import os, sys, torch
from headwise.engine.host import keep_freed_memory, spare_collections
from racing import Ours
from workloads import WORKLOADS, plan_of
torch.set_num_threads(1)
keep_freed_memory()
name, rounds = sys.argv[1], int(sys.argv[2])
racer = Ours(plan_of(WORKLOADS[name]))
racer.round(1)
with spare_collections():
    print("ready", flush=True)
    for line in sys.stdin:
        before = os.times()
        for _ in range(rounds):
            racer.round(1)
        after = os.times()
        print((after.user + after.system - before.user - before.system) / rounds, end=" ")
        print((after.elapsed - before.elapsed) / rounds, flush=True)
"""


class Checkout:
    """A process that runs rounds of one workload with the code of one checkout."""

    def __init__(self, folder: Path, name: str) -> None:
        source = folder.resolve() / "src"
        environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", WORKER, name, str(ROUNDS.get(name, 1))]
        self._process = subprocess.Popen(
            command,
            cwd=source.parent / "benchmarks",
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def turn(self) -> tuple[float, float]:
        """The CPU and wall seconds of a round."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        cpu, wall = map(float, self._answer().split())
        return cpu, wall

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a process ended with code {self._process.wait()}")
        return line


def race(folders: Sequence[Path], name: str, turns: int) -> str:
    """A row of the table: this workload in all checkouts."""
    checkouts = [Checkout(folder, name) for folder in folders]
    times = [[checkout.turn() for checkout in checkouts] for _ in range(turns)]
    for checkout in checkouts:
        checkout.close()
    columns = [tuple(zip(*(row[k] for row in times), strict=True)) for k in range(len(folders))]
    cpu, wall = ([median(column[kind]) for column in columns] for kind in (0, 1))
    ratios = [f"{seconds[k] / seconds[0]:.3f}" for k in range(1, len(folders)) for seconds in (cpu, wall)]
    return (
        f"| {name} | " + " | ".join([*(f"{c:.4f} | {w:.4f}" for c, w in zip(cpu, wall, strict=True)), *ratios]) + " |"
    )


def main() -> None:
    """Print the table, a row when it is measured."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkouts", nargs="+", type=str, help="folders, then names of workloads")
    parser.add_argument("--turns", type=int, default=7)
    arguments = parser.parse_args()
    names = [name for name in arguments.checkouts if name in NAMES] or NAMES
    folders = [Path(folder) for folder in arguments.checkouts if folder not in NAMES]
    heads = [f"{folder.resolve().name} {kind} s" for folder in folders for kind in ("CPU", "wall")]
    heads += [f"{folder.resolve().name} {kind} ratio" for folder in folders[1:] for kind in ("CPU", "wall")]
    print(f"| | {' | '.join(heads)} |\n|---|{'---:|' * len(heads)}")
    for name in names:
        print(race(folders, name, arguments.turns), flush=True)


if __name__ == "__main__":
    main()
