"""How fast rounds of FedAvg are in another checkout of Headwise, beside this one.

    python benchmarks/before_after.py ../headwise-before            # all workloads
    python benchmarks/before_after.py ../headwise-before W1 W5

Each checkout runs in a process of its own, with its own workloads; they take turns, and medians of CPU seconds of one
thread are compared. What an older checkout needs besides can be on PYTHONPATH.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from racing import race
from workloads import WORKLOADS

HERE = Path(__file__).parent.parent
TURNS = 7
SHORT = {"W5": 20}
"""rounds in a turn, where one is short"""
MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**34)}
"""what keeps freed memory in the process, as in a run"""
PROGRAM = """
import sys, time
import torch
torch.set_num_threads(1)
from racing import Ours
from workloads import WORKLOADS, plan_of
ours = Ours(plan_of(WORKLOADS[sys.argv[1]]))
for line in sys.stdin:
    begun = time.process_time()
    for _ in range(int(line)):
        ours.round(1)
    print((time.process_time() - begun) / int(line), flush=True)
"""


class Racer:
    """A workload in a checkout."""

    def __init__(self, checkout: Path, name: str) -> None:
        path = os.pathsep.join(str(checkout / folder) for folder in ("src", "benchmarks"))
        path = os.pathsep.join([path, *filter(None, [os.environ.get("PYTHONPATH")])])
        env = {**os.environ, **MEMORY, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", PROGRAM, name]
        self.process = subprocess.Popen(command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, rounds: int) -> float:
        """CPU seconds per round."""
        assert self.process.stdin and self.process.stdout
        print(rounds, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def close(self) -> None:
        self.process.communicate()


def main(before: Path, *names: str) -> None:
    print("| | before s | after s | ratio |\n|---|---:|---:|---:|")
    for name in names or WORKLOADS:
        racers = {"before": Racer(before, name), "after": Racer(HERE, name)}
        rounds = SHORT.get(name, 1)
        turns = {key: partial(racer.run, rounds) for key, racer in racers.items()}
        old, new = race(turns, TURNS, time.process_time).values()
        print(f"| {name} | {old:.3f} | {new:.3f} | {new / old:.2f} |", flush=True)
        for racer in racers.values():
            racer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), *sys.argv[2:])
