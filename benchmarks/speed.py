"""How fast: Headwise against the loop that others use, and against a bare one. Writes docs/results/speed.md.

    python benchmarks/speed.py            # about a quarter of an hour on two quiet cores

Ratios are taken inside one interleaved run, of medians; CPU seconds of one thread unless wall time is named.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import growth
import torch
from naive import Bare, Naive, PlainHeads
from torch import nn
from workloads import WORKLOADS, Workload, plan_of

from headwise.data.federated import Clients
from headwise.engine.driver import drive
from headwise.engine.events import Event, Progress, RoundEnded
from headwise.engine.executors.base import Executor
from headwise.engine.executors.pool import Pool
from headwise.engine.executors.serial import Serial
from headwise.engine.executors.threads import Threads
from headwise.engine.host.process import keep_freed_memory, spared_collections
from headwise.engine.plan import Plan
from headwise.runs.manifest import machine
from headwise.settings.options import Engine

PAGE = Path(__file__).parent.parent / "docs" / "results" / "speed.md"
REPETITIONS = {"W3": 3, "W4": 21, "W5": 21}
"""where not seven: a round of W3 takes long, those of W4 and W5 are short, and vary"""
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


def workloads() -> list[str]:
    """Rounds of FedAvg on W1 to W5."""
    lines: list[str] = []
    for name, load in WORKLOADS.items():
        plan = plan_of(load)
        racers = {"naive": Apart(load), "bare": Bare(plan), "ours": Ours(plan)}
        rounds = {"naive": 1, "bare": 1, "ours": SHORT if name == "W5" else 1}
        turns = {who: partial(several, racer.round, rounds[who]) for who, racer in racers.items()}
        with closing(racers["naive"]):
            found = race(turns, REPETITIONS.get(name, 7), time.process_time)
        found = {who: seconds / rounds[who] for who, seconds in found.items()}
        faster, over = found["naive"] / found["ours"], found["ours"] / found["bare"] - 1
        cells = [f"{found[k]:.3f}" for k in ("naive", "bare", "ours")]
        lines.append(f"| {name} | {load.what} | {' | '.join(cells)} | {faster:.2f} x | {over:+.1%} |")
        print(lines[-1], flush=True)
    return lines


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
    lines = [f"| {k} | {v:.2f} | {found['one worker'] / v:.2f} x |" for k, v in found.items()]
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
    lines: list[str] = []
    for name, (method, options, plain) in ways.items():
        plan = plan_of(FEW, method)
        plan = dataclasses.replace(plan, method=dataclasses.replace(plan.method, **options))  # pyright: ignore[reportArgumentType]
        racers = {"cached": Ours(plan), "uncached": Ours(plan.changed(engine=Engine(kernels="plain")))}
        turns: dict[str, Callable[[], object]] = {k: partial(r.round, 1) for k, r in racers.items()}
        if plain:
            turns["whole"] = partial(plain(plan).round, 1)
        found = race(turns, 5, time.process_time)
        whole = f"{found['whole']:.3f} | {found['whole'] / found['cached']:.2f} x" if plain else "- | -"
        gain = found["uncached"] / found["cached"]
        lines.append(f"| {name} | {found['cached']:.3f} | {found['uncached']:.3f} | {gain:.2f} x | {whole} |")
        print(lines[-1], flush=True)
    return lines


def evaluation() -> list[str]:
    """20 clients with 75 test samples each."""
    load = dataclasses.replace(WORKLOADS["W1"], samples=10, test=75)
    plan = plan_of(load)
    model, naive = plan.models[0], Naive(plan).model

    def one_by_one(model: nn.Module, batch: int) -> None:
        with torch.no_grad():
            for c in range(load.clients):
                for x in plan.data.client(c).test.x.split(batch):
                    model(x if model is not naive else x.contiguous())

    turns = {
        "batches of 10, as others lay out their images": partial(one_by_one, naive, 10),
        "batches of 10, channels last": partial(one_by_one, model, 10),
        "as Headwise does it": partial(one_by_one, model, plan.experiment.evaluate.batch),
    }
    found = race(turns, 7, time.process_time)
    best = found["as Headwise does it"]
    lines = [f"| {k} | {v:.3f} | {v / best:.2f} x |" for k, v in found.items()]
    print("\n".join(lines), flush=True)
    return lines


def main() -> None:
    """Measure everything and write the page."""
    torch.set_num_threads(1)
    keep_freed_memory()
    parts = [workloads(), workers(), rounds(), evaluation(), growth.table()]
    races, crew, methods, looks, grown = ("\n".join(lines) for lines in parts)
    PAGE.write_text(f"""# Speed

Made by `python benchmarks/speed.py` on {machine()}. Ratios are inside one
interleaved run, of medians. Seconds are CPU time of one
thread for a round, unless it says wall.

## Rounds of FedAvg

*naive*: a DataLoader of tuples, a copy of the model and an optimiser per client, as other libraries have it
(`benchmarks/naive.py`). *bare*: the same steps with the engine's kernels and nothing federated around them. A turn is
one round; on W5 {SHORT} of Headwise, which take as long as one naive round.

| | workload | naive s | bare s | Headwise s | against naive | over bare |
|---|---|---:|---:|---:|---:|---:|
{races}

## Workers

W1, wall seconds per round.

| | s | against one worker |
|---|---:|---:|
{crew}

## Frozen bodies

Whole rounds of five clients of W1. *uncached*: every batch passes the frozen body again, every head is trained by
autograd (`engine.kernels = "plain"`). *whole*: every phase passes the whole network there and back
and uses only a part of the gradients, as code does that does not freeze anything.

| method | Headwise s | uncached s | gain | whole s | gain |
|---|---:|---:|---:|---:|---:|
{methods}

## Evaluation

20 clients with 75 test samples each, the CNN for 3x32x32, client after client.

| | s | against Headwise |
|---|---:|---:|
{looks}

## Growth

{grown}
""")


if __name__ == "__main__":
    main()
