"""Very many clients: seconds and memory to start, per round, and to evaluate 1,000 of them.

python benchmarks/million.py [10000 100000 1000000]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import headwise as hw
from headwise.engine.host import peak_memory

SAMPLED = 20
MEASURED = 1000
ROUNDS = 12


def measure(clients: int) -> dict[str, float]:
    """A run of FedPer with personal heads of 20 KB, 20 samples per client, and a checkpoint after every round."""
    base = peak_memory()
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        experiment = hw.Experiment(
            method="fedper",
            data={"name": "synthetic", "samples": 20 * clients, "features": 8, "sites": 100},
            partition="iid",
            clients=clients,
            model="mlp:512",
            rounds=ROUNDS,
            sampling={"ratio": SAMPLED / clients},
            evaluate={"every": ROUNDS, "clients": MEASURED / clients},
            engine={"workers": 1},
        )
        run = hw.run(experiment, Path(folder) / "run")
        spent = time.perf_counter() - begun
        rows = run.rounds
        seconds = [row["seconds"]["round"] for row in rows]
        disk = sum(p.stat().st_size for p in Path(folder).rglob("*") if p.is_file())
    return {
        "start": spent - sum(seconds),
        "round": median(seconds[1:-1]),
        "evaluation": rows[-1]["seconds"]["evaluate"],
        "memory": (peak_memory() - base) / 2**20,
        "data": 20 * clients * (8 * 4 + 8) / 2**20,
        "disk": disk / 2**20,
    }


def table(sizes: list[int]) -> list[str]:
    """A Markdown table with a row for each size."""
    lines = [
        "| clients | s to start | s / round | s to evaluate 1,000 | MB of memory | of which samples | MB on disk |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for clients in sizes:
        done = subprocess.run(
            [sys.executable, __file__, "one", str(clients)], capture_output=True, text=True, check=True
        )
        f = json.loads(done.stdout.splitlines()[-1])
        cells = [f"{clients:,}", f"{f['start']:.1f}", f"{f['round']:.3f}", f"{f['evaluation']:.1f}"]
        cells += [f"{f[name]:,.0f}" for name in ("memory", "data", "disk")]
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return lines


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        print(json.dumps(measure(int(sys.argv[2]))))
    else:
        print("\n".join(table([int(n) for n in sys.argv[1:]] or [10_000, 100_000, 1_000_000])))
