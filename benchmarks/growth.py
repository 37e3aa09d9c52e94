"""How time and memory per round grow with the federation. Every size is measured in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from matplotlib import pyplot
from workloads import Workload, plan_of

from headwise.contract.method import record_types
from headwise.engine.driver import drive
from headwise.engine.events import Event, RoundEnded
from headwise.engine.executors.local import Serial
from headwise.engine.host import peak_memory
from headwise.runs.store import RunStore
from headwise.settings.options import Sampling

ROUNDS = 12
WARM = 40
HEADS = Workload("personal heads of 20 KB", "mlp:512", (64,), 0, 20, 10)
MODELS = Workload("personal CNNs of 3.5 MB", "cnn", (3, 32, 32), 0, 10, 10)
CASES = [
    *((HEADS, "fedper", n, 10) for n in (10, 100, 1_000, 10_000)),
    *((HEADS, "fedper", 1_000, m) for m in (20, 40, 80)),
    *((MODELS, "standalone", n, 10) for n in (10, 100, 1_000)),
]


def measure(load: Workload, method: str, clients: int, sampled: int) -> dict[str, Any]:
    """Median wall seconds of a round with its checkpoint, the peak of memory, and the size of the states on disk."""
    torch.set_num_threads(1)
    plan = plan_of(replace(load, clients=clients), method, rounds=ROUNDS, sampling=Sampling(sampled / clients))
    base = peak_memory()
    ends = list[float]()
    with (
        tempfile.TemporaryDirectory(dir=".") as folder,
        closing(RunStore(Path(folder), record_types(type(plan.method)))) as store,
    ):

        def keep(event: Event) -> None:
            if isinstance(event, RoundEnded):
                store(event)
                ends.append(time.perf_counter())

        executor = Serial(plan, store.load().states)
        most = plan.with_settings(rounds=WARM, sampling=Sampling(0.05))  # first, so that most clients have a state
        drive(most, executor, (keep,))
        ends.clear()
        drive(plan, executor, (keep,))
        disk = sum(p.stat().st_size for p in Path(folder).rglob("*") if p.is_file())
    seconds = [b - a for a, b in pairwise(ends)]
    return {"seconds": median(seconds), "grown": (peak_memory() - base) / 2**20, "disk": disk / 2**20}


def table() -> list[str]:
    """A Markdown table of all cases, and their picture."""
    lines = [
        "Wall seconds of a round in one process, with its checkpoint, without evaluation; most clients have a state",
        "on disk. Memory is what the run needs beyond data and network, at most.\n",
        "| states | clients | sampled | s / round | ms / sampled client | MB of memory | MB on disk |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    rows: list[dict[str, Any]] = []
    for k, (load, _, clients, sampled) in enumerate(CASES):
        done = subprocess.run([sys.executable, __file__, str(k)], capture_output=True, text=True, check=True)
        f = json.loads(done.stdout.splitlines()[-1])
        rows.append({**f, "states": load.what, "clients": clients, "sampled": sampled})
        each = f["seconds"] / sampled * 1000
        sizes = [f"{f['grown']:.0f}", f"{f['disk']:,.0f}"]
        cells = [f"{clients:,}", str(sampled), f"{f['seconds']:.4f}", f"{each:.2f}", *sizes]
        lines.append(f"| {load.what} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    picture(rows)
    return [*lines, "\n![Time and memory of a round](growth.svg)"]


def picture(rows: list[dict[str, Any]]) -> None:
    """Time and memory against the number of clients, ten of them sampled, and time against that of sampled clients."""
    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    for axes, what, name in ((left, "seconds", "seconds per round"), (middle, "grown", "MB of memory, at most")):
        for states in dict.fromkeys(f["states"] for f in rows):
            few = [f for f in rows if f["states"] == states and f["sampled"] == 10]
            axes.plot([f["clients"] for f in few], [f[what] for f in few], marker="o", label=states)
        axes.set(xscale="log", xlabel="clients, 10 sampled", ylabel=name, ylim=(0, None))
    many = [f for f in rows if f["states"] == HEADS.what and f["clients"] == 1_000]
    right.plot([f["sampled"] for f in many], [f["seconds"] for f in many], marker="o")
    right.set(xlabel="sampled of 1,000 clients", ylabel="seconds per round", xlim=(0, None), ylim=(0, None))
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(Path(__file__).parent.parent / "docs" / "results" / "growth.svg", metadata={"Date": None})


if __name__ == "__main__":
    print(json.dumps(measure(*CASES[int(sys.argv[1])])))
