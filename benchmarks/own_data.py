"""A user's own data at scale: seconds and memory until 100,000 clients of 20 samples from one Parquet file can train.

python benchmarks/own_data.py [--clients 100000] [--samples 20] [--features 10]
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np


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


def memory() -> str:
    """Now and at most: what is this process's own, and what is mapped from files and can be dropped at any time."""
    status = Path("/proc/self/status").read_text()
    found = {line.split(":")[0]: int(line.split()[1]) // 1024 for line in status.splitlines() if " kB" in line}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return f"{found['RssAnon']:,} MB own, {found['RssFile']:,} MB of files, at most {peak:,} MB"


@contextmanager
def step(name: str) -> Iterator[None]:
    begun, used = time.perf_counter(), time.process_time()
    yield
    spent, cpu = time.perf_counter() - begun, time.process_time() - used
    print(f"{name:30} {spent:6.1f} s, {cpu:5.1f} s of CPU   {memory()}", flush=True)


def measure(toml: Path) -> None:
    with step("import torch and headwise"):
        from headwise.app.prepare import divided, plan_for
        from headwise.settings.experiment import Experiment
    experiment = Experiment(data=str(toml), model="linear", method="fedavg")
    with step("hash the file"):
        experiment.data.make("data")
    with step("read and divide over clients"):
        data = divided(experiment, Path())
    with step("summary"):
        _ = data.summary
    with step("fit, transform, plan"):
        plan = plan_for(experiment, data)
    with step("100 clients' training samples"):
        for c in range(0, len(plan.data), max(1, len(plan.data) // 100)):
            _ = plan.data.client(c).train
    print(f"{len(plan.data):,} clients, {len(plan.data.y):,} samples of {tuple(plan.data.x.shape[1:])}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--features", type=int, default=10)
    parser.add_argument("--toml", type=Path, help="measure this one")
    given = parser.parse_args()
    if given.toml:
        measure(given.toml)
        return
    with tempfile.TemporaryDirectory() as folder:  # in another process, so that writing does not count
        toml = write(Path(folder), given.clients, given.samples, given.features)
        print(f"{(Path(folder) / 'data.parquet').stat().st_size / 2**20:,.0f} MB of Parquet")
        subprocess.run([sys.executable, __file__, "--toml", str(toml)], check=True)


if __name__ == "__main__":
    main()
