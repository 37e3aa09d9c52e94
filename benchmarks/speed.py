"""How fast: Headwise against the loop that others use, and against a bare one. Writes docs/results/speed.md.

    python benchmarks/speed.py                   # everything
    python benchmarks/speed.py rounds workers    # only these sections of the page; SECTIONS has all

Ratios are taken inside one interleaved run, of medians; CPU seconds of one thread unless wall time is named.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import growth
import million
import torch
from naive import Bare, Naive, PlainHeads
from pages import put
from torch import Tensor
from workloads import WORKLOADS, Workload, plan_of

from headwise.contract.averaging import Shared
from headwise.data.federated import Clients
from headwise.engine.client.jobs import Job, handle_all
from headwise.engine.client.predictions import passed
from headwise.engine.driver import drive
from headwise.engine.events import Event, Progress, RoundEnded
from headwise.engine.executors.base import Executor
from headwise.engine.executors.pool import Pool
from headwise.engine.executors.serial import Serial
from headwise.engine.executors.threads import Threads
from headwise.engine.host.clock import Clock
from headwise.engine.host.process import keep_freed_memory, spared_collections
from headwise.engine.kernels.native.checking import native
from headwise.engine.plan import Plan
from headwise.runs.manifest import machine
from headwise.settings.options import Engine

PAGE = Path(__file__).parent.parent / "docs" / "results" / "speed.md"
REPETITIONS = {"W3": 2, "W4": 7, "W5": 7}
"""where not three: a round of W3 takes long, those of W4 and W5 are short, and vary"""
AVX2 = {"HEADWISE_NATIVE": "avx2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
AVX2 |= {"MKL_ENABLE_INSTRUCTIONS": "AVX2"}
"""what keeps our kernels, torch, oneDNN and MKL from wider vectors"""
SIZES = [10_000, 100_000, 1_000_000]
SHORT = 20
"""rounds of ours in a turn of W5: so it lasts as long as the others', not only while the caches still hold theirs"""
FEW = dataclasses.replace(WORKLOADS["W1"], clients=5)
Times = dict[str, list[float]]


class Ours:
    """Rounds of the engine, one at a time."""

    def __init__(self, plan: Plan, executor: Executor | None = None) -> None:
        self.plan, self.executor = plan, executor or Serial(plan)
        self.now: Progress | None = None

    def round(self, t: int) -> None:
        """The next round, with everything around it but storing."""
        before = self.now

        def keep(event: Event) -> None:
            if isinstance(event, RoundEnded):
                self.now = event.progress

        drive(self.plan, self.executor, (keep,), start=before, interrupted=lambda: self.now is not before)


class Apart:
    """The naive loop in a process of its own, where memory is handled as in anybody's."""

    def __init__(self, load: Workload) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.line, theirs = spawn.Pipe()
        self.process = spawn.Process(target=_apart, args=(theirs, load), daemon=True)
        self.process.start()
        self.line.recv()

    def round(self, t: int) -> float:
        """One round; returns its CPU seconds."""
        self.line.send(t)
        return self.line.recv()

    def close(self) -> None:
        """End the process."""
        self.line.send(None)
        self.process.join()


def _apart(line: Connection, load: Workload) -> None:
    torch.set_num_threads(1)
    racer = Naive(plan_of(load))
    line.send("ready")
    while (t := line.recv()) is not None:
        begun = time.process_time()
        racer.round(t)
        line.send(time.process_time() - begun)


def race(racers: Mapping[str, Callable[[], object]], repetitions: int, clock: Callable[[], float]) -> dict[str, float]:
    """The median time of each, after one turn to warm up; they take turns."""
    times: Times = {name: [] for name in racers}
    with spared_collections():
        for _ in range(1 + repetitions):
            for name, run in racers.items():
                begun = clock()
                told = run()  # a process of its own tells its time itself
                times[name].append(told if isinstance(told, float) else clock() - begun)
    return {name: median(found[1:]) for name, found in times.items()}


def several(run: Callable[[int], float | None], rounds: int) -> float | None:
    """Some rounds one after the other; what they took if they tell."""
    told = [run(1) for _ in range(rounds)]
    return sum(t for t in told if t is not None) if told[0] is not None else None


def workloads(names: Sequence[str] = tuple(WORKLOADS)) -> list[str]:
    """Rounds of FedAvg."""
    lines = [
        "*naive*: a DataLoader of tuples, a copy of the model and an optimiser per client, as other libraries have it",
        "(`benchmarks/naive.py`). *bare*: the same steps with autograd and nothing federated around them. A turn is",
        f"one round; on W5 {SHORT} of Headwise, which take as long as one naive round.\n",
        "| | workload | naive s | bare s | Headwise s | against naive | against bare |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for name in names:
        load = WORKLOADS[name]
        plan = plan_of(load)
        racers = {"naive": Apart(load), "bare": Bare(plan), "ours": Ours(plan)}
        rounds = {"naive": 1, "bare": 1, "ours": SHORT if name == "W5" else 1}
        turns = {who: partial(several, racer.round, rounds[who]) for who, racer in racers.items()}
        with closing(racers["naive"]):
            found = race(turns, REPETITIONS.get(name, 3), time.process_time)
        found = {who: seconds / rounds[who] for who, seconds in found.items()}
        cells = [f"{found[k]:.3f}" for k in ("naive", "bare", "ours")]
        cells += [f"{found[k] / found['ours']:.2f} x" for k in ("naive", "bare")]
        lines.append(f"| {name} | {load.what} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return lines


def limited() -> list[str]:
    """The chains among the workloads in a process that must not use AVX-512."""
    code = "import speed, torch; torch.set_num_threads(1); speed.keep_freed_memory()\n"
    code += "print('\\n'.join(['page:', *speed.workloads(['W1', 'W2', 'W3', 'W5'])]))"
    command, here = [sys.executable, "-c", code], Path(__file__).parent
    done = subprocess.run(command, cwd=here, env={**os.environ, **AVX2}, stdout=subprocess.PIPE, text=True, check=True)
    told = " ".join(f"{k}={v}" for k, v in AVX2.items())
    return [f"The same with `{told}`.\n", done.stdout.partition("page:\n")[2].rstrip()]


def rebuilt(load: Workload, data: Clients) -> Plan:
    """The plan in a worker."""
    return dataclasses.replace(plan_of(load), data=data)


def workers() -> list[str]:
    """One process against two, by the wall clock."""
    load = WORKLOADS["W1"]
    plan = plan_of(load)
    rebuild = partial(rebuilt, load)
    one, two, threads = Pool(plan, rebuild, 1), Pool(plan, rebuild, 2), Threads(plan, 2)
    with closing(one), closing(two), closing(threads):
        racers = {"serial": Ours(plan), "one worker": Ours(plan, one), "two workers": Ours(plan, two)}
        racers["two threads"] = Ours(plan, threads)
        found = race({k: partial(r.round, 1) for k, r in racers.items()}, 5, time.perf_counter)
    lines = ["W1, wall seconds per round.\n", "| | s | against one worker |", "|---|---:|---:|"]
    lines += [f"| {k} | {v:.2f} | {found['one worker'] / v:.2f} x |" for k, v in found.items()]
    print("\n".join(lines), flush=True)
    return lines


def rounds() -> list[str]:
    """Whole rounds of methods with frozen bodies: with and without the cache, and with whole passes in every phase."""
    ways: dict[str, tuple[str, dict[str, Any], Callable[[Plan], PlainHeads] | None]] = {
        "FedRep, 1 head epoch": ("fedrep", {"head_epochs": 1}, lambda plan: PlainHeads(plan, 1)),
        "FedRep, 5 head epochs": ("fedrep", {"head_epochs": 5}, lambda plan: PlainHeads(plan, 5)),
        "FedAH": ("fedah", {}, lambda plan: PlainHeads(plan, 1, weights=True)),
        "FedGH": ("fedgh", {}, None),
        "FedGMH": ("fedgmh", {}, None),
        "FedALA": ("fedala", {}, None),
        "Ditto": ("ditto", {}, None),
        "FedAFK": ("fedafk", {}, None),
    }
    lines = [
        "Whole rounds of five clients of W1. *uncached*: every batch passes the frozen body again, every head is",
        'trained by autograd (`engine.kernels = "plain"`). *whole*: every phase passes the whole network there and',
        "back and uses only a part of the gradients, as code does that does not freeze anything.\n",
        "| method | Headwise s | uncached s | gain | whole s | gain |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, (method, options, plain) in ways.items():
        plan = plan_of(FEW, method)
        plan = dataclasses.replace(plan, method=dataclasses.replace(plan.method, **options))  # pyright: ignore[reportArgumentType]
        racers = {"cached": Ours(plan), "uncached": Ours(plan.changed(engine=Engine(kernels="plain")))}
        turns: dict[str, Callable[[], object]] = {k: partial(r.round, 1) for k, r in racers.items()}
        if plain:
            turns["whole"] = partial(plain(plan).round, 1)
        found = race(turns, 3, time.process_time)
        whole = f"{found['whole']:.3f} | {found['whole'] / found['cached']:.2f} x" if plain else "- | -"
        gain = found["uncached"] / found["cached"]
        lines.append(f"| {name} | {found['cached']:.3f} | {found['uncached']:.3f} | {gain:.2f} x | {whole} |")
        print(lines[-1], flush=True)
    return lines


def evaluation() -> list[str]:
    """20 clients with 75 test samples each: networks alone, and with everything around them."""
    load = dataclasses.replace(WORKLOADS["W1"], samples=10, test=75)
    plan = plan_of(load)
    model, naive = plan.models[0], Naive(plan).model
    jobs = [(Job("global", c, 1, Shared(model.params())), None) for c in range(load.clients)]

    def outputs(say: Callable[[Tensor], object]) -> None:
        with torch.no_grad():
            for c in range(load.clients):
                say(plan.data.client(c).test.x)

    size = plan.experiment.evaluate.batch
    torch_only = plan.changed(engine=Engine(kernels="plain"))
    turns: dict[str, Callable[[], object]] = {
        "batches of 10, as others lay out their images": partial(
            outputs, lambda x: [naive(part.contiguous()) for part in x.split(10)]
        ),
        "batches of 10, channels last": partial(outputs, lambda x: [model(part) for part in x.split(10)]),
        "all samples, torch": partial(outputs, lambda x: passed(model, x, size, fast=False)),
        "all samples, native kernels": partial(outputs, lambda x: passed(model, x, size, fast=True)),
        "jobs with scores, torch": partial(handle_all, torch_only, jobs, Clock()),
        "jobs with scores, as Headwise does it": partial(handle_all, plan, jobs, Clock()),
    }
    found = race(turns, 9, time.process_time)
    best = found["jobs with scores, as Headwise does it"]
    lines = ["20 clients with 75 test samples each, the CNN for 3x32x32, client after client.\n"]
    lines += ["| | s | against Headwise |", "|---|---:|---:|"]
    lines += [f"| {k} | {v:.3f} | {v / best:.2f} x |" for k, v in found.items()]
    print("\n".join(lines), flush=True)
    return lines


SECTIONS: dict[str, tuple[str, Callable[[], list[str]]]] = {
    "rounds": ("Rounds of FedAvg", workloads),
    "avx2": ("Limited to AVX2", limited),
    "workers": ("Workers", workers),
    "methods": ("Frozen bodies", rounds),
    "evaluation": ("Evaluation", evaluation),
    "growth": ("Growth", growth.table),
    "million": ("Very many clients", lambda: million.table(SIZES)),
}


def main() -> None:
    """Measure these sections, or all of them, and write them into the page, each when it is done."""
    torch.set_num_threads(1)
    keep_freed_memory()
    names = sys.argv[1:] or list(SECTIONS)
    if unknown := set(names) - set(SECTIONS):
        raise SystemExit(f"{', '.join(sorted(unknown))}: not a section; there are {', '.join(SECTIONS)}")
    for name in names:
        title, measured = SECTIONS[name]
        begun = time.perf_counter()
        lines = measured()
        put(PAGE, title, [*lines, "", f"*{machine()}, chains: {native()}; {time.perf_counter() - begun:.0f} s.*"])


if __name__ == "__main__":
    main()
