"""What a round costs on Flower's simulation engine, against the local engines: `python benchmarks/flower.py`.

A network of 3.4 MB goes to 20 clients and back, each with a few samples, so that nearly all of the time is transport;
then a small network and 200 virtual nodes. Run it where only loopback is reachable: Ray listens on all addresses.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import headwise as hw
from headwise.engine.events import Event, RoundEnded

ROUNDS = 6
LARGE = {"data": "synthetic:800:10:784", "model": "mlp:1070", "clients": 20}
SMALL = {"data": "synthetic:4000:10:20", "model": "mlp:20", "clients": 200}


def sim(nodes: int) -> dict[str, Any]:
    return {"kind": "flower-sim", "workers": 2, "flower": {"nodes": nodes}}


LOCAL = {"serial": {"workers": 1}, "pool of 2": {"workers": 2}}
CASES = {
    "3.4 MB, 20 clients": (LARGE, LOCAL | {f"flower-sim, {n} nodes": sim(n) for n in (20, 4)}),
    "small, 200 clients": (SMALL, LOCAL | {f"flower-sim, {n} nodes": sim(n) for n in (20, 200)}),
}


def measure(values: dict[str, Any], engine: dict[str, Any], folder: Path) -> tuple[float, float]:
    """Seconds until the first round has ended, and the median of those after it."""
    begun, times = time.perf_counter(), list[float]()

    def see(event: Event) -> None:
        if isinstance(event, RoundEnded):
            times.append(time.perf_counter())

    evaluate = {"moments": ["post"]}
    hw.run(
        hw.Experiment(method="fedper", rounds=ROUNDS, partition="iid", evaluate=evaluate, engine=engine, **values),
        folder,
        observers=[see],
    )
    return times[0] - begun, statistics.median(b - a for a, b in itertools.pairwise(times))


if __name__ == "__main__":
    print("| what | engine | first round | a round |\n|---|---|---|---|")
    for what, (values, engines) in CASES.items():
        for name, engine in engines.items():
            with tempfile.TemporaryDirectory() as folder:
                first, usual = measure(values, engine, Path(folder) / "run")
            print(f"| {what} | {name} | {first:.1f} s | {usual:.2f} s |", flush=True)
