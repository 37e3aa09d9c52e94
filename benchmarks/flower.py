"""What a round costs on Flower, against the local engines: `python benchmarks/flower.py` writes docs/results/flower.md.

A network of 3.4 MB goes to 20 clients and back, each with a few samples, so that nearly all of the time is transport;
then a small network, 20 clients and 200 virtual nodes. Run it where only loopback is reachable, because Ray listens on
all addresses: `unshare --net sh -c 'ip link set lo up && exec python benchmarks/flower.py'`.

With `--against PYTHON`, another checkout's interpreter, it compares deployments of four sites there and here, one after
the other, and writes docs/results/sites.md instead.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import headwise as hw
from headwise.sites.site.signing import node_key

ROUNDS, NODES, PORT = 4, 4, 18700
PAGE = Path(__file__).parents[1] / "docs" / "results" / "flower.md"
LARGE = ("synthetic:800:10:784:sites=20", "mlp:1070", 20)
SMALL = ("synthetic:800:10:20:sites=20", "mlp:20", 20)
MANY = ("synthetic:4000:10:20:sites=200", "mlp:20", 200)


FOUR = {
    "7 KB": ("synthetic:160:10:20:sites=4", "mlp:20", 4),
    "7 KB, masked": ("synthetic:160:10:20:sites=4", "mlp:20", 4),
    "3.4 MB": ("synthetic:160:10:784:sites=4", "mlp:1070", 4),
    "44 MB": ("synthetic:160:4:6:sites=4", "mlp:3340:2", 4),
}
"""one small client at each of four sites"""


def sim(nodes: int) -> dict[str, Any]:
    return {"kind": "flower-sim", "workers": 2, "flower": {"nodes": nodes}}


LOCAL: dict[str, dict[str, Any] | None] = {"serial": {"workers": 1}, "pool of 2": {"workers": 2}}
SITES = f"{NODES} SuperNodes, TLS, keys"
CASES: dict[str, tuple[tuple[str, str, int], dict[str, dict[str, Any] | None]]] = {
    "3.4 MB, 20 clients": (
        LARGE,
        LOCAL | {"flower-sim, 20 nodes": sim(20), "flower-sim, 4 nodes": sim(4), SITES: None},
    ),
    "7 KB, 20 clients": (SMALL, LOCAL | {"flower-sim, 4 nodes": sim(4), SITES: None}),
    "7 KB, 200 clients": (MANY, LOCAL | {f"flower-sim, {n} nodes": sim(n) for n in (20, 200)}),
}


def experiment(case: tuple[str, str, int], engine: dict[str, Any]) -> hw.Experiment:
    data, model, clients = case
    values: dict[str, Any] = {"evaluate": {"moments": ["post"]}, "engine": engine}
    return hw.Experiment("fedper", data, "natural", model, clients=clients, rounds=ROUNDS, **values)  # pyright: ignore


def contention() -> float:
    """Wall over CPU time of a busy loop: 1 on an idle machine."""
    wall, cpu = time.perf_counter(), time.process_time()
    while time.process_time() - cpu < 0.5:
        pass
    return (time.perf_counter() - wall) / 0.5


def deployed(
    case: tuple[str, str, int], home: Path, more: str = "", rounds: int = ROUNDS, python: str = sys.executable
) -> hw.Run:
    """A server and sites on loopback, each started as a person would; `more` is TOML for the experiment."""
    data, model, clients = case
    headwise = [python, "-m", "headwise"]
    head = f'method = "fedper"\ndata = "{data}"\npartition = "natural"\nmodel = "{model}"\nclients = {clients}\n'
    (home / "exp.toml").write_text(f'{head}rounds = {rounds}\nevaluate = {{ moments = ["post"] }}\n{more}')
    started = [start(home, headwise, "server", "start", "server", "--port", str(PORT))]
    try:
        while socket.socket().connect_ex(("127.0.0.1", PORT)):
            time.sleep(0.5)
        for k in range(NODES):
            site = home / f"site{k}"
            site.mkdir()
            own = [f'[[clients]]\nid = {c}\nsource = "{data}:only={c}"\n' for c in range(clients) if c % NODES == k]
            (site / "site.toml").write_text(f'name = "site{k}"\ndata = "synthetic"\n{"".join(own)}')
            node_key(site / "site.key")
        keys = [f"site{k}/site.key.pub" for k in range(NODES)]
        subprocess.run([*headwise, "server", "register", "server", *keys], cwd=home, check=True, capture_output=True)
        where = ("--superlink", f"127.0.0.1:{PORT}", "--ca", "server/ca.crt")
        for k in range(NODES):
            started.append(start(home, headwise, "site", "start", f"site{k}", *where, "--port", str(PORT + 1 + k)))
        deploy = [*headwise, "deploy", "exp.toml", "--server", "server", "--out", "run", "--json"]
        subprocess.run(deploy, cwd=home, check=True, capture_output=True)
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGTERM)
        for process in started:
            process.wait()
    return hw.Run(home / "run")


def start(home: Path, headwise: list[str], *words: str) -> subprocess.Popen[bytes]:
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([*headwise, *words], cwd=home, start_new_session=True, **quiet)


def measure() -> list[str]:
    """A line of the table for each engine."""
    lines: list[str] = []
    for what, (case, engines) in CASES.items():
        for name, engine in engines.items():
            with tempfile.TemporaryDirectory() as folder:
                before, begun = contention(), time.perf_counter()
                home = Path(folder)
                run = deployed(case, home) if engine is None else hw.run(experiment(case, engine), home / "run")
                whole = time.perf_counter() - begun
                seconds = [row["seconds"]["round"] for row in run.rounds]
            usual, busy = statistics.median(seconds[1:]), (before + contention()) / 2
            line = (
                f"| {what} | {name} | {seconds[0]:.2f} s | {usual:.2f} s | {whole - sum(seconds):.0f} s | {busy:.1f} |"
            )
            print(line, flush=True)
            lines.append(line)
    return lines


def compare(python: str, cases: list[str]) -> list[str]:
    """A line for each message: seconds of a round there and here, and their ratio."""
    lines: list[str] = []
    for what in cases:
        usual, busy = dict[str, float](), [contention()]
        for where, interpreter in (("there", python), ("here", sys.executable)):
            more = "secure = { sums = true }\n" if "masked" in what else ""
            with tempfile.TemporaryDirectory() as folder:
                run = deployed(FOUR[what], Path(folder), more, python=interpreter)
                usual[where] = statistics.median(row["seconds"]["round"] for row in run.rounds[1:])
            busy.append(contention())
        ratio = usual["there"] / usual["here"]
        lines.append(
            f"| {what} | {usual['there']:.1f} s | {usual['here']:.1f} s | {ratio:.1f} | {statistics.mean(busy):.1f} |"
        )
        print(lines[-1], flush=True)
    return lines


SITES_PAGE = """# Sites: what a round costs

`python benchmarks/flower.py --against PYTHON`: a server and four sites with one small client each, TLS and keys, all on
one machine with {cores} cores; FedPer, {rounds} rounds, the median without the first. *Before*, Flower started a
process for each message; *now*, a worker stays ([decision 27](../decisions/0027-one-life.md)). *Contention* is wall
over CPU time of a busy loop, 1 on an idle machine: **where it is above 1, other programs ran as well, times are too
long, and only the ratio means something**.

| message | before | now | ratio | contention |
|---|---|---|---|---|
{lines}
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
    asked = parser.parse_args()
    if asked.against:
        table = "\n".join(compare(asked.against, asked.case or [*FOUR]))
        page = PAGE.with_name("sites.md")
        page.write_text(SITES_PAGE.format(rounds=ROUNDS, cores=os.cpu_count(), lines=table), encoding="utf-8")
    else:
        PAGE.write_text(TEXT.format(rounds=ROUNDS, cores=os.cpu_count(), lines="\n".join(measure())), encoding="utf-8")
