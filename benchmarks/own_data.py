"""A user's own data at scale: seconds and memory until 100,000 clients of 20 samples from one Parquet file can train.

python benchmarks/own_data.py [--clients 1000 10000 100000] [--samples 20] [--features 10] [-o docs/results/own-data.md]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from headwise.app import registry


def write(folder: Path, clients: int, samples: int, features: int) -> Path:
    """One Parquet file whose rows are in no order of clients, and its data.toml."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    rng = np.random.default_rng(0)
    n = clients * samples
    owner = rng.permutation(np.repeat(np.arange(clients), samples))
    columns = {f"f{k}": rng.standard_normal(n).astype(np.float32) for k in range(features)}
    table = pa.table({"client": pa.array([f"c{k}" for k in owner]), "y": rng.integers(0, 10, n), **columns})
    parquet.write_table(table, folder / "data.parquet")
    names = ", ".join(f'"f{k}"' for k in range(features))
    text = (
        f'format = "parquet"\npath = "data.parquet"\nclient = "client"\ntarget = "y"\n[features]\nnumber = [{names}]\n'
    )
    (folder / "data.toml").write_text(text)
    return folder / "data.toml"


def memory() -> dict[str, int]:
    """MB: this process's own, those mapped from files, which can be dropped at any time, and the peak of both."""
    status = Path("/proc/self/status").read_text()
    sizes = {line.split(":")[0]: int(line.split()[1]) // 1024 for line in status.splitlines() if " kB" in line}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {"own": sizes["RssAnon"], "files": sizes["RssFile"], "peak": peak}


@contextmanager
def step(name: str) -> Iterator[None]:
    """A line of JSON for each."""
    begun = time.perf_counter()
    used = time.process_time()
    yield
    spent = time.perf_counter() - begun
    cpu = time.process_time() - used
    print(json.dumps({"step": name, "seconds": spent, "cpu": cpu, **memory()}), flush=True)


def measure(toml: Path) -> None:
    with step("import torch and headwise"):
        from headwise.app.prepare import divide, plan_for
        from headwise.settings.experiment import Experiment
    experiment = Experiment(data=str(toml), model="linear", method="fedavg")
    with step("hash the file"):
        registry.make("data", experiment.data)
    with step("read and divide over clients"):
        data = divide(experiment, Path())
    with step("summary"):
        _ = data.summary
    with step("fit, transform, plan"):
        plan = plan_for(experiment, data)
    with step("100 clients' training samples"):
        for c in range(0, len(plan.data), max(1, len(plan.data) // 100)):
            _ = plan.data.client(c).train


def measure_apart(clients: int, samples: int, features: int) -> list[dict[str, Any]]:
    """Each step, in another process, so that writing the file does not count."""
    with tempfile.TemporaryDirectory() as folder:
        toml = write(Path(folder), clients, samples, features)
        command = [sys.executable, __file__, "--toml", str(toml)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        size = (Path(folder) / "data.parquet").stat().st_size / 2**20
    steps = [json.loads(line) for line in done.stdout.splitlines()]
    print(f"{clients:,} clients, {size:,.0f} MB of Parquet")
    for row in steps:
        used = f"{row['own']:,} MB own, {row['files']:,} MB of files, at most {row['peak']:,} MB"
        print(f"  {row['step']:30} {row['seconds']:6.1f} s, {row['cpu']:5.1f} s of CPU   {used}", flush=True)
    return steps


PAGE = """# Your own data at scale

`{command}`
writes this page: from one Parquet file, whose rows are in no order of clients, until every client can train. Clients
have {samples} samples of {features} numbers. CPU seconds on {cores} cores, a process for each size; and at the end the
memory that is the process's own, what is mapped from files and can be dropped at any time, and the most of both.

| step | {head} |
|---|{line}
{rows}
"""


def page(by_size: dict[int, list[dict[str, Any]]], samples: int, features: int) -> str:
    steps = zip(*by_size.values(), strict=True)
    cells = [[each[0]["step"], *(f"{row['cpu']:.1f} s" for row in each)] for each in steps]
    for key, name in (("own", "own memory"), ("files", "mapped from files"), ("peak", "at most")):
        cells.append([name, *(f"{each[-1][key]:,} MB" for each in by_size.values())])
    return PAGE.format(
        command=f"python benchmarks/own_data.py --clients {' '.join(map(str, by_size))} -o docs/results/own-data.md",
        samples=samples,
        features=features,
        cores=os.cpu_count(),
        head=" | ".join(f"{n:,} clients" for n in by_size),
        line="---:|" * len(by_size),
        rows="\n".join(f"| {' | '.join(row)} |" for row in cells),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--features", type=int, default=10)
    parser.add_argument("--toml", type=Path, help="measure this one")
    parser.add_argument("-o", "--out", type=Path, help="the page to write")
    given = parser.parse_args()
    if given.toml:
        measure(given.toml)
        return
    steps = {n: measure_apart(n, given.samples, given.features) for n in given.clients}
    if given.out:
        given.out.write_text(page(steps, given.samples, given.features), encoding="utf-8")


if __name__ == "__main__":
    main()
