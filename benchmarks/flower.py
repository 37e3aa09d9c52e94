"""What a round costs on Flower, against the local engines: `python benchmarks/flower.py` writes docs/results/flower.md.

A network of 3.4 MB goes to 20 clients and back, each with a few samples, so that nearly all of the time is transport;
then a small network, 20 clients and 200 virtual nodes. Run it where only loopback is reachable, because Ray listens on
all addresses: `unshare --net sh -c 'ip link set lo up && exec python benchmarks/flower.py'`.

With `--against PYTHON`, another checkout's interpreter, it compares deployments of four sites there and here, one after
the other, measures the masks alone, and writes docs/results/sites.md instead.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from loopback import Case, Deployed, contention, deployed

import headwise as hw
from headwise.sites.secagg.protocol import deal_shares, mask_vector, new_secrets, parties_needed, read_share

ROUNDS = 4
COMPARED = 3
SITES = 4
"""rounds of each measurement, fewer where another checkout is measured as well; sites"""
NUMBERS = 850_000
"""of a vector that is masked"""
PAGE = Path(__file__).parents[1] / "docs" / "results" / "flower.md"
LARGE = Case("synthetic:800:10:784:sites=20", "mlp:1070", 20)
SMALL = Case("synthetic:800:10:20:sites=20", "mlp:20", 20)
MANY = Case("synthetic:4000:10:20:sites=200", "mlp:20", 200)

MASKED = "secure = { sums = true }\n"
FOUR = {
    "7 KB": Case("synthetic:160:10:20:sites=4", "mlp:20", 4),
    "7 KB, masked": Case("synthetic:160:10:20:sites=4", "mlp:20", 4, MASKED),
    "3.4 MB": Case("synthetic:160:10:784:sites=4", "mlp:1070", 4),
    "44 MB": Case("synthetic:160:4:6:sites=4", "mlp:3340:2", 4),
}
"""one small client at each of four sites"""


def sim(nodes: int) -> dict[str, Any]:
    return {"kind": "flower-sim", "workers": 2, "flower": {"nodes": nodes}}


LOCAL: dict[str, dict[str, Any] | None] = {"serial": {"workers": 1}, "pool of 2": {"workers": 2}}
REAL = f"{SITES} sites, TLS, keys"
CASES: dict[str, tuple[Case, dict[str, dict[str, Any] | None]]] = {
    "3.4 MB, 20 clients": (
        LARGE,
        LOCAL | {"flower-sim, 20 nodes": sim(20), "flower-sim, 4 nodes": sim(4), REAL: None},
    ),
    "7 KB, 20 clients": (SMALL, LOCAL | {"flower-sim, 4 nodes": sim(4), REAL: None}),
    "7 KB, 200 clients": (MANY, LOCAL | {f"flower-sim, {n} nodes": sim(n) for n in (20, 200)}),
}


def experiment(case: Case, engine: dict[str, Any]) -> hw.Experiment:
    values: dict[str, Any] = {"evaluate": {"moments": ["post"]}, "engine": engine}
    return hw.Experiment("fedper", case.data, "natural", case.model, clients=case.clients, rounds=ROUNDS, **values)  # pyright: ignore


def measure() -> list[str]:
    """A line of the table for each engine."""
    lines: list[str] = []
    for what, (case, engines) in CASES.items():
        for name, engine in engines.items():
            with tempfile.TemporaryDirectory() as folder:
                before = contention()
                begun = time.perf_counter()
                home = Path(folder)
                if engine is None:
                    run = deployed(case, home, rounds=ROUNDS, sites=SITES).run
                else:
                    run = hw.run(experiment(case, engine), home / "run")
                whole = time.perf_counter() - begun
                seconds = [row["seconds"]["round"] for row in run.rounds]
            usual = statistics.median(seconds[1:])
            busy = (before + contention()) / 2
            line = (
                f"| {what} | {name} | {seconds[0]:.2f} s | {usual:.2f} s | {whole - sum(seconds):.0f} s | {busy:.1f} |"
            )
            print(line, flush=True)
            lines.append(line)
    return lines


def compare(python: str, cases: list[str]) -> list[str]:
    """A line for each message: seconds and CPU seconds of a round there and here."""
    lines: list[str] = []
    for what in cases:
        deployments = list[Deployed]()
        busy = [contention()]
        for interpreter in (python, sys.executable):
            with tempfile.TemporaryDirectory() as folder:
                deployments.append(deployed(FOUR[what], Path(folder), rounds=COMPARED, sites=SITES, python=interpreter))
            busy.append(contention())
        before, here = deployments
        cpu = [sum(each.cpu.values()) for each in deployments]
        lines.append(
            f"| {what} | {before.usual:.1f} s | {here.usual:.1f} s | {before.usual / here.usual:.1f} | "
            f"{cpu[0]:.1f} s | {cpu[1]:.1f} s | {statistics.mean(busy):.1f} |"
        )
        print(lines[-1], flush=True)
    return lines


def masks() -> list[str]:
    """A line for each number of sites: CPU seconds of one for its shares, the others', and a vector."""
    lines: list[str] = []
    for count in (4, 20, 100):
        secrets = [new_secrets() for _ in range(count)]
        roster = [s.member() for s in secrets]
        x = np.zeros(NUMBERS, np.uint64)
        begun = time.process_time()
        letters = deal_shares(secrets[0], 0, roster, parties_needed(2 / 3, count))
        dealt = time.process_time()
        for v in range(1, count):
            read_share(secrets[v].cipher, v, 0, roster, letters[v])
        read = time.process_time()
        mask_vector(x, secrets[0], 0, roster, range(count), "benchmark")
        done = time.process_time()
        lines.append(f"| {count} | {dealt - begun:.2f} s | {read - dealt:.2f} s | {done - read:.2f} s |")
        print(lines[-1], flush=True)
    return lines


SITES_PAGE = """# Sites: what a round costs

`python benchmarks/flower.py --against PYTHON`: a server and four sites with one small client each, TLS and keys, all on
one machine with {cores} cores; FedPer, {rounds} rounds, the median without the first. *Before*, Flower started a
process for each message; *now*, a worker stays ([decision 23](../decisions/0023-one-life.md)). *CPU* is of all
processes together, per round. *Contention* is wall over CPU time of a busy loop, 1 on an idle machine: **where it is
above 1, other programs ran as well, and the times are too long; CPU seconds suffer less**.

| model | before | now | ratio | CPU before | CPU now | contention |
|---|---|---|---|---|---|---|
{lines}

A masked vector has 8 bytes per number, in place of 4, and is one for all clients of a site. The masks alone take of a
site, for {numbers:,} numbers, in CPU seconds:

| sites | deal shares | read the others' | mask |
|---|---|---|---|
{masks}
"""
TEXT = """# Flower: what a round costs

`python benchmarks/flower.py`, in a network of its own that has only loopback. FedPer, {rounds} rounds, a few samples
per client: nearly all of the time is transport and start-up. *Around it* is all that is no round: starting, importing,
ending. *Contention* is wall over CPU time of a busy loop before and after, 1 on an idle machine: **where it is above 1,
times are too long, by up to that factor**. All processes are on one machine with {cores} cores.

| message | engine | first round | a round | around it | contention |
|---|---|---|---|---|---|
{lines}
"""

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--against", help="interpreter of another checkout")
    parser.add_argument("--case", action="append", choices=FOUR, help="with --against: only this message; repeatable")
    arguments = parser.parse_args()
    if arguments.against:
        alone, table = ("\n".join(each) for each in (masks(), compare(arguments.against, arguments.case or [*FOUR])))
        facts = {"rounds": COMPARED, "cores": os.cpu_count(), "numbers": NUMBERS, "masks": alone}
        PAGE.with_name("sites.md").write_text(SITES_PAGE.format(**facts, lines=table), encoding="utf-8")
    else:
        PAGE.write_text(TEXT.format(rounds=ROUNDS, cores=os.cpu_count(), lines="\n".join(measure())), encoding="utf-8")
