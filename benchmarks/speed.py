"""How fast: Headwise against the loop that others use, and against torch's kernels. Writes docs/results/speed.md.

    python benchmarks/speed.py                   # everything, about a quarter of an hour on two idle cores
    python benchmarks/speed.py rounds workers    # only these sections of the page; SECTIONS has all

Ratios are taken inside one interleaved run, of medians; CPU seconds of one thread unless wall time is named.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import growth
import million
import start
import torch
from naive import Bare, Naive
from pages import put
from racing import Apart, Ours, race, several
from torch import Tensor
from workloads import WORKLOADS, plan_of, rebuilt

from headwise import methods
from headwise.contract.averaging import Shared
from headwise.engine.client.jobs import Job, handle
from headwise.engine.client.scoring import compute_outputs
from headwise.engine.executors.local import Threads
from headwise.engine.executors.pool import Pool
from headwise.engine.host import keep_freed_memory
from headwise.engine.kernels.native.chain import native
from headwise.engine.kernels.native.library import LIMIT
from headwise.engine.plan import Plan
from headwise.runs.manifest import describe_machine
from headwise.settings.options import Engine

PAGE = Path(__file__).parent.parent / "docs" / "results" / "speed.md"
REPETITIONS = {"W3": 2, "W4": 7, "W5": 7}
"""where not three: a round of W3 takes long, those of W4 and W5 are short, and vary"""
AVX2 = {LIMIT: "avx2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
"""what keeps our kernels, torch, oneDNN and MKL from wider vectors"""
SIZES = [10_000, 100_000, 1_000_000]
SHORT = 20
"""rounds of ours in a turn of W5: so it lasts as long as the others', not only while the caches still hold theirs"""
SQUARE = 768
PRODUCTS = 50
"""the side of the matrices whose product is the yardstick, and how many of them are a turn"""
FEW = dataclasses.replace(WORKLOADS["W1"], clients=1)
OTHERS = [Path(p).resolve() for p in os.environ.get("HEADWISE_CHECKOUTS", "").split(os.pathsep) if p]
"""older checkouts whose start is measured beside ours"""


def products(a: Tensor) -> None:
    for _ in range(PRODUCTS):
        a.mm(a)


def without_native(run: Callable[[], object]) -> None:
    """A turn on torch's kernels, the fastest of them: as on a machine without the native library."""
    before = os.environ.get(LIMIT)
    os.environ[LIMIT] = "off"
    run()
    del os.environ[LIMIT]
    os.environ |= {} if before is None else {LIMIT: before}


def workloads(names: Sequence[str] = tuple(WORKLOADS)) -> list[str]:
    """Rounds of FedAvg."""
    lines = [
        "*naive*: a DataLoader of tuples, a copy of the model and an optimizer per client, as other libraries have it",
        "(`benchmarks/naive.py`). *bare*: the same steps with autograd and nothing federated around them. *torch*:",
        f"Headwise with `{LIMIT}=off`. *of sgemm*: the operations of a round's training, zero gradients included, per",
        f"second of the whole round, beside torch's product of matrices of {SQUARE} x {SQUARE}. A turn is one round;",
        f"on W5 {SHORT} of Headwise, which take as long as one naive round.\n",
        "| | workload | naive s | bare s | torch s | Headwise s | against naive | against torch | of sgemm |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    a = torch.ones(SQUARE, SQUARE)
    for name in names:
        load = WORKLOADS[name]
        many = SHORT if name == "W5" else 1
        plan = plan_of(load)
        naive = Apart(load)
        bare = Bare(plan)
        ours = Ours(plan)
        plain = Ours(plan)
        turns: dict[str, Callable[[], object]] = {
            "naive": partial(naive.round, 1),
            "bare": partial(bare.round, 1),
            "torch": partial(without_native, partial(several, plain.round, many)),
            "ours": partial(several, ours.round, many),
            "sgemm": partial(products, a),
        }
        with closing(naive):
            seconds = race(turns, REPETITIONS.get(name, 3), time.process_time)
        seconds |= {who: seconds[who] / many for who in ("torch", "ours")}
        rate = 2e-9 * SQUARE**3 * PRODUCTS / seconds["sgemm"]
        share = f"{ours.gflop / seconds['ours'] / rate:.0%}" if ours.gflop else "-"
        cells = [f"{seconds[k]:.3f}" for k in ("naive", "bare", "torch", "ours")]
        cells += [f"{seconds[k] / seconds['ours']:.2f} x" for k in ("naive", "torch")]
        lines.append(f"| {name} | {load.what} | {' | '.join(cells)} | {share} |")
        print(lines[-1], flush=True)
    return lines


def limit_to_avx2() -> list[str]:
    """The chains among the workloads in a process that must not use AVX-512."""
    code = "import speed, torch; torch.set_num_threads(1); speed.keep_freed_memory()\n"
    code += "print('\\n'.join(['page:', *speed.workloads(['W1', 'W2', 'W3', 'W5'])]))"
    command = [sys.executable, "-c", code]
    here = Path(__file__).parent
    done = subprocess.run(command, cwd=here, env={**os.environ, **AVX2}, stdout=subprocess.PIPE, text=True, check=True)
    variables = " ".join(f"{k}={v}" for k, v in AVX2.items())
    return [f"The same with `{variables}`.\n", done.stdout.partition("page:\n")[2].rstrip()]


def workers() -> list[str]:
    """One process against two, by the wall clock."""
    load = WORKLOADS["W1"]
    plan = plan_of(load)
    rebuild = partial(rebuilt, load)
    one = Pool(plan, rebuild, 1)
    two = Pool(plan, rebuild, 2)
    threads = Threads(plan, 2)
    with closing(one), closing(two), closing(threads):
        racers = {"serial": Ours(plan), "one worker": Ours(plan, one), "two workers": Ours(plan, two)}
        racers["two threads"] = Ours(plan, threads)
        seconds = race({k: partial(r.round, 1) for k, r in racers.items()}, 5, time.perf_counter)
    lines = ["W1, wall seconds per round.\n", "| | s | against one worker |", "|---|---:|---:|"]
    lines += [f"| {k} | {v:.2f} | {seconds['one worker'] / v:.2f} x |" for k, v in seconds.items()]
    print("\n".join(lines), flush=True)
    return lines


def rounds() -> list[str]:
    """Whole rounds of all methods, on native kernels and on torch's, and beside FedAvg in the same turns."""
    options: dict[str, dict[str, Any]] = {"fedrep, 5 head epochs": {"head_epochs": 5}}
    names = sorted(p.stem.replace("_", "-") for p in Path(methods.__file__).parent.glob("[!_]*.py"))
    lines = [
        "CPU milliseconds per training sample, in whole rounds of a client of W1. *torch*:",
        f"`{LIMIT}=off`. *x FedAvg*: beside FedAvg in the same turns.\n",
        "| method | Headwise | torch | gain | x FedAvg |",
        "|---|---:|---:|---:|---:|",
    ]
    average = Ours(plan_of(FEW))
    for name in [*names, *options]:
        plan = plan_of(FEW, name.partition(",")[0])
        plan = dataclasses.replace(plan, method=dataclasses.replace(plan.method, **options.get(name, {})))  # pyright: ignore[reportArgumentType]
        ours = Ours(plan)
        before = Ours(plan)
        turns: dict[str, Callable[[], object]] = {
            "ours": partial(ours.round, 1),
            "torch": partial(without_native, partial(before.round, 1)),
            "fedavg": partial(average.round, 1),
        }
        seconds = race(turns, 2, time.process_time)
        mine, theirs, usual = (1e3 * s / (FEW.clients * FEW.samples) for s in seconds.values())
        title = f"{type(plan.method).__name__}{name.removeprefix(name.partition(',')[0])}"
        lines.append(f"| {title} | {mine:.2f} | {theirs:.2f} | {theirs / mine:.2f} x | {mine / usual:.1f} x |")
        print(lines[-1], flush=True)
    return lines


def evaluation() -> list[str]:
    """20 clients with 75 test samples each: networks alone, and with everything around them."""
    load = dataclasses.replace(WORKLOADS["W1"], samples=10, test=75)
    plan = plan_of(load)
    model = plan.models[0]
    naive = Naive(plan).model
    jobs = [Job("global", c, 1, Shared(model.params())) for c in range(load.clients)]

    def outputs(say: Callable[[Tensor], object]) -> None:
        with torch.no_grad():
            for c in range(load.clients):
                say(plan.data.client(c).test.x)

    def scores(made: Plan) -> None:
        for job in jobs:
            handle(made, job, None)

    size = plan.experiment.evaluate.batch
    torch_only = plan.with_settings(engine=Engine(kernels="plain"))
    turns: dict[str, Callable[[], object]] = {
        "batches of 10, as others lay out their images": partial(
            outputs, lambda x: [naive(part.contiguous()) for part in x.split(10)]
        ),
        "batches of 10, channels last": partial(outputs, lambda x: [model(part) for part in x.split(10)]),
        "all samples, torch": partial(outputs, lambda x: compute_outputs(model, x, size, fast=False)),
        "all samples, native kernels": partial(outputs, lambda x: compute_outputs(model, x, size, fast=True)),
        "jobs with scores, torch": partial(scores, torch_only),
        "jobs with scores, as Headwise does it": partial(scores, plan),
    }
    seconds = race(turns, 9, time.process_time)
    best = seconds["jobs with scores, as Headwise does it"]
    lines = ["20 clients with 75 test samples each, the CNN for 3x32x32, client after client.\n"]
    lines += ["| | s | against Headwise |", "|---|---:|---:|"]
    lines += [f"| {k} | {v:.3f} | {v / best:.2f} x |" for k, v in seconds.items()]
    print("\n".join(lines), flush=True)
    return lines


SECTIONS: dict[str, tuple[str, Callable[[], list[str]]]] = {
    "rounds": ("Rounds of FedAvg", workloads),
    "avx2": ("Limited to AVX2", limit_to_avx2),
    "workers": ("Workers", workers),
    "methods": ("Other methods", rounds),
    "evaluation": ("Evaluation", evaluation),
    "start": ("Start", lambda: start.table(OTHERS)),
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
        where = f"*{describe_machine()}, chains: {native()}; {time.perf_counter() - begun:.0f} s.*"
        put(PAGE, title, [*lines, "", where])


if __name__ == "__main__":
    main()
