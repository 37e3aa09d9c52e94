"""How fast the peers' own code is, beside Headwise: PFLlib and FL-bench, from checkouts that you give.

    python benchmarks/peers.py --pfllib ../PFLlib --flbench ../FL-bench --python ../peers/bin/python
    python benchmarks/peers.py ... --way training --methods fedavg ditto --turns 5

Everybody trains the CNN of 878,538 parameters on the same 20 clients, whose shares of the classes are drawn from
Dir(0.1), batch 10, one epoch, and one on the head where a method trains it apart. Two ways: `training` is one core, CPU
seconds, without evaluation; `rounds` is what people run, all cores, wall seconds, all clients evaluated in every round.
Each turn is a process of its own that does a few rounds, of which the first two are left out: FedALA's second round
learns weights until they converge. Turns alternate between the libraries, and medians of rounds are compared.

Nothing of the peers is changed or copied: a small program calls their `main` with arguments, gives FL-bench its
samples, and tells it that Ray has no GPU where Ray says nothing of any. `--python` is an interpreter with what they
need (torchvision, h5py, calmsize, cvxpy; hydra-core, pynvml, ray).
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from pages import put

CLIENTS = 20
SAMPLES = 8_000
"""of all clients; a quarter of each one's is for testing"""
PAGE = Path(__file__).parent.parent / "docs" / "results" / "speed.md"
SECTIONS = {
    "training": "Other libraries: training, one core, CPU seconds",
    "rounds": "Other libraries: whole rounds, two cores, wall seconds",
}
TITLES = {
    **{"fedavg": "FedAvg", "fedrep": "FedRep", "fedah": "FedAH", "fedgh": "FedGH", "fedala": "FedALA"},
    "ditto": "Ditto",
}
METHODS = tuple(TITLES)
PFLLIB = {"fedavg": "FedAvg", "fedrep": "FedRep", "fedgh": "FedGH", "fedala": "FedALA", "ditto": "Ditto"}
FLBENCH = ("fedavg", "fedrep", "fedah", "fedala", "ditto")
OPTIONS = {"fedrep": {"head_epochs": 1}}
"""of our methods, where the default is more work than the peers do"""
UNSTEADY = 2
"""rounds at the beginning that don't count"""
RUN_PFLLIB = """
import runpy, sys, time
if {cpu}:
    time.time = time.process_time
import torch
sys.argv = {argv}
sys.path.insert(0, ".")
runpy.run_path("main.py", run_name="__main__")
"""
RUN_FLBENCH = """
import pathlib, runpy, sys, time
clock = time.process_time if {cpu} else time.time
import numpy as np
import torch
sys.path.insert(0, ".")
from data.utils import datasets
from src.server import fedavg

class Samples(datasets.BaseDataset):
    def __init__(self, root, args=None, **transforms):
        x, y = (torch.from_numpy(np.load({data!r} + name)) for name in ("x.npy", "y.npy"))
        super().__init__(data=x.float(), targets=y, classes=list(range(10)), **transforms)

datasets.DATASETS["cifar10"] = fedavg.DATASETS["cifar10"] = Samples
import ray
resources = ray.cluster_resources
ray.cluster_resources = lambda: {{"GPU": 0, **resources()}}
show = fedavg.FedAvgServer.display_metrics
begun = [clock()]

def timed(self):
    show(self)
    now = clock()
    print("seconds of a round:", now - begun[0], flush=True)
    begun[0] = now

fedavg.FedAvgServer.display_metrics = timed
sys.argv = {argv}
runpy.run_path("main.py", run_name="__main__")
"""
STARTUP = """
import sys

class Torchvision:
    # torchvision may be built for another torch: only what is compiled is missing then, which nobody uses here
    def find_spec(self, name, path=None, target=None):
        if name == "torchvision._meta_registrations" and not sys.modules["torchvision.extension"]._has_ops():
            import torch
            self.library = torch.library.Library("torchvision", "DEF")
            self.library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

sys.meta_path.insert(0, Torchvision())
"""
"""what the peers' processes run at their start, Ray's among them"""


def draw_clients(data: Path | None) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], list[np.ndarray[Any, Any]]]:
    """Images as bytes [n, 3, 32, 32], labels, and the indices of each client's samples."""
    rng = np.random.default_rng(0)
    batch = None if data is None else data / "cifar-10-batches-bin" / "data_batch_1.bin"
    if batch is not None and batch.exists():
        rows = np.frombuffer(batch.read_bytes(), dtype=np.uint8).reshape(-1, 3073)[:SAMPLES]
        x, y = rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].astype(np.int64)
    else:
        x = rng.integers(0, 256, (SAMPLES, 3, 32, 32), dtype=np.uint8)
        y = rng.integers(0, 10, SAMPLES)
    while True:
        shares = rng.dirichlet([0.1] * CLIENTS, 10)
        owner = np.empty(len(y), dtype=np.int64)
        for label, share in enumerate(shares):
            mine = np.flatnonzero(y == label)
            owner[mine] = rng.choice(CLIENTS, len(mine), p=share)
        clients = [rng.permutation(np.flatnonzero(owner == c)) for c in range(CLIENTS)]
        if min(map(len, clients)) >= 40:
            return x, y, clients


def cut(client: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """For training and for testing."""
    train = len(client) * 3 // 4
    return client[:train], client[train:]


def give_pfllib(checkout: Path, data: Path | None) -> None:
    x, y, clients = draw_clients(data)
    for part in (0, 1):
        folder = checkout / "dataset" / "Cifar10" / ("train", "test")[part]
        folder.mkdir(parents=True, exist_ok=True)
        for c, client in enumerate(clients):
            at = cut(client)[part]
            samples = {"x": (x[at] / 127.5 - 1).astype(np.float32), "y": y[at]}
            np.savez(folder / f"{c}.npz", data=np.array(samples, dtype=object))


def give_flbench(checkout: Path, data: Path | None, folder: str) -> None:
    x, y, clients = draw_clients(data)
    np.save(f"{folder}x.npy", x)
    np.save(f"{folder}y.npy", y)
    place = checkout / "data" / "cifar10"
    place.mkdir(parents=True, exist_ok=True)
    indices = [{"train": train, "val": train[:0], "test": test} for train, test in map(cut, clients)]
    everyone = list(range(CLIENTS))
    separation = {"train": everyone, "val": everyone, "test": everyone, "total": CLIENTS}
    (place / "partition.pkl").write_bytes(pickle.dumps({"separation": separation, "data_indices": indices}))
    (place / "args.json").write_text(json.dumps({"dataset": "cifar10", "split": "sample", "client_num": CLIENTS}))


def time_pfllib(python: str, checkout: Path, method: str, rounds: int, training: bool) -> list[float]:
    gap = 10**6 if training else 1
    argv = ["main.py", "-data", "Cifar10", "-m", "CNN", "-algo", PFLLIB[method], "-lbs", 10, "-ls", 1]
    argv += ["-gr", rounds + 1, "-lr", 0.01, "-jr", 1.0, "-nc", CLIENTS, "-eg", gap, "-dev", "cpu"]
    argv += ["-pls", 1, "-se", 1] if method in ("fedrep", "fedgh", "ditto") else []
    program = RUN_PFLLIB.format(cpu=training, argv=[str(a) for a in argv])
    lines = run_program(python, program, checkout / "system", training)
    seconds = [float(line.split()[-1]) for line in lines if line.startswith("-") and "time cost" in line]
    return seconds[UNSTEADY:]


def time_flbench(
    python: str, checkout: Path, method: str, rounds: int, training: bool, folder: str, *, parallel: bool
) -> list[float]:
    epochs = 2 if method == "fedrep" else 1  # all but the last of FedRep's epochs train the head
    argv = [
        *("main.py", f"method={method}", "dataset.name=cifar10", "model.name=avgcnn", "common.join_ratio=1"),
        *(f"common.global_epoch={rounds + UNSTEADY}", f"common.local_epoch={epochs}", "common.batch_size=10"),
        "common.use_cuda=false",
        *("common.save_log=false", "common.save_metrics=false", "common.save_learning_curve_plot=false"),
        f"common.client_side_evaluation={str(not training).lower()}",
        f"common.test.client.interval={-1 if training else 1}",
        *(["mode=parallel", "parallel.num_cpus=2", "parallel.num_gpus=0"] if parallel else ["mode=serial"]),
    ]
    program = RUN_FLBENCH.format(cpu=training, argv=argv, data=folder)
    lines = run_program(python, program, checkout, training)
    seconds = [float(line.split()[-1]) for line in lines if line.startswith("seconds of a round:")]
    return seconds[UNSTEADY:]


def time_headwise(method: str, rounds: int, training: bool, data: Path | None) -> list[float]:
    """In a process of its own, like the others."""
    arguments = ["--ours", method, "--rounds", str(rounds), "--way", "training" if training else "rounds"]
    arguments += [] if data is None else ["--data", str(data)]
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, env=environment(training), stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def run_program(python: str, program: str, folder: Path, training: bool) -> list[str]:
    with tempfile.TemporaryDirectory() as startup:
        (Path(startup) / "sitecustomize.py").write_text(STARTUP)
        env = {**environment(training), "PYTHONPATH": startup}
        done = subprocess.run([python, "-c", program], cwd=folder, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{folder}: {done.stderr[-2000:]}")
    return done.stdout.splitlines()


def environment(training: bool) -> dict[str, str]:
    return {**os.environ, **({"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"} if training else {})}


def drive_ours(method: str, rounds: int, training: bool, data: Path | None) -> list[float]:
    """Rounds of Headwise on the same clients."""
    import torch

    from headwise.app import registry
    from headwise.data.federated import Clients
    from headwise.engine.driver import drive
    from headwise.engine.events import Event, RoundEnded
    from headwise.engine.executors.local import Serial, Threads
    from headwise.engine.host import keep_freed_memory, spare_collections
    from headwise.engine.plan import Plan
    from headwise.models.base import Task
    from headwise.models.split import lay_out
    from headwise.settings.choices import Choice
    from headwise.settings.experiment import Experiment
    from headwise.settings.options import Evaluate, Train

    torch.set_num_threads(1)
    keep_freed_memory()
    x, y, clients = draw_clients(data)
    order = np.concatenate(clients)
    ends, at = [], 0
    for client in clients:
        train = len(cut(client)[0])
        ends.append((at + train, at + train, at + len(client)))
        at += len(client)
    images = torch.from_numpy(x[order]).float().div_(127.5).sub_(1).contiguous(memory_format=torch.channels_last)
    task = Task((3, 32, 32), 10)
    model = lay_out(registry.make("model", Choice.parse("cnn", "model")).build(task).eval())
    evaluate = Evaluate(every=10**6, moments=()) if training else Evaluate(moments=("pre",))
    experiment = Experiment(rounds=rounds + UNSTEADY, train=Train(batch=10, lr=0.01), evaluate=evaluate)
    federation = Clients(task, images, torch.from_numpy(y[order]), np.array(ends))
    plan = Plan(experiment, registry.find("method", method)(**OPTIONS.get(method, {})), (model,), federation)
    clock = time.process_time if training else time.perf_counter
    ticks: list[float] = []

    def tick(event: Event) -> None:
        if isinstance(event, RoundEnded):
            ticks.append(clock())

    cores = os.cpu_count() or 1
    executor = Serial(plan) if training or cores == 1 else Threads(plan, cores)
    with spare_collections():
        drive(plan, executor, [tick])
    executor.close()
    return [after - before for before, after in pairwise(ticks[UNSTEADY - 1 :])]


def compare(options: argparse.Namespace) -> list[str]:
    """A row for each method: median seconds per round of everybody, and the best peer's beside ours."""
    training = options.way == "training"
    with tempfile.TemporaryDirectory() as scratch:
        folder = f"{scratch}/"
        if options.pfllib:
            give_pfllib(options.pfllib, options.data)
        if options.flbench:
            give_flbench(options.flbench, options.data, folder)
        names = ["Headwise", *(["FL-bench + Ray"] if not training else []), "FL-bench", "PFLlib"]
        rows = [f"| s per round | {' | '.join(names)} | ahead of the best |", f"|---|{'---:|' * (len(names) + 1)}"]
        for method in options.methods:
            seconds = race_peers(options, method, folder, training)
            cells = [f"{median(seconds[name]):.2f}" if seconds.get(name) else "-" for name in names]
            others = [median(times) for name, times in seconds.items() if name != "Headwise" and times]
            ahead = f"{min(others) / median(seconds['Headwise']):.1f} x" if others else "-"
            rows.append(f"| {TITLES[method]} | {' | '.join(cells)} | {ahead} |")
            print(rows[-1], flush=True)
    return rows


def race_peers(options: argparse.Namespace, method: str, folder: str, training: bool) -> dict[str, list[float]]:
    """Everybody's seconds per round; they take turns."""
    seconds: dict[str, list[float]] = {}
    for _ in range(options.turns):
        ours = time_headwise(method, 2 * options.rounds, training, options.data)
        seconds.setdefault("Headwise", []).extend(ours)
        if options.flbench and method in FLBENCH:
            for name, parallel in (("FL-bench", False), ("FL-bench + Ray", True)):
                if not (training and parallel):
                    checkout = options.flbench
                    times = time_flbench(
                        options.python, checkout, method, options.rounds, training, folder, parallel=parallel
                    )
                    seconds.setdefault(name, []).extend(times)
        if options.pfllib and method in PFLLIB:
            times = time_pfllib(options.python, options.pfllib, method, options.rounds, training)
            seconds.setdefault("PFLlib", []).extend(times)
    return seconds


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pfllib", type=lambda p: Path(p).resolve(), help="a checkout of TsingZ0/PFLlib")
    parser.add_argument("--flbench", type=lambda p: Path(p).resolve(), help="a checkout of KarhouTam/FL-bench")
    parser.add_argument("--python", default=sys.executable, help="an interpreter with what they need")
    parser.add_argument("--data", type=Path, help="a folder with cifar-10-batches-bin; otherwise images are random")
    parser.add_argument("--way", choices=("training", "rounds"), default="training")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--rounds", type=int, default=2, help="of the peers in a turn; twice as many of ours")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--page", action="store_true", help="write the table into docs/results/speed.md")
    parser.add_argument("--ours", choices=METHODS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.ours:
        print(json.dumps(drive_ours(options.ours, options.rounds, options.way == "training", options.data)))
        return
    if not options.pfllib and not options.flbench:
        parser.error("give a checkout: --pfllib, --flbench or both")
    begun = time.perf_counter()
    rows = compare(options)
    if options.page:
        from headwise.engine.kernels.native.chain import native
        from headwise.runs.manifest import describe_machine

        end = f"*{describe_machine()}, chains: {native()}; {options.turns} turns of {options.rounds} rounds; "
        put(PAGE, SECTIONS[options.way], [*rows, "", f"{end}{time.perf_counter() - begun:.0f} s.*"])


if __name__ == "__main__":
    main()
