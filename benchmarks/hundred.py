"""A study of a hundred sites on one machine: `python benchmarks/hundred.py` writes docs/results/hundred.md.

The server is real: SuperLink, TLS, keys, `headwise deploy`. The sites are thin (benchmarks/thin.py). `--sites 10`
measures another number of them; repeatable.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from loopback import Case, Deployed, contention, deployed

PAGE = Path(__file__).parents[1] / "docs" / "results" / "hundred.md"
ROUNDS = 3
MANY = (10, 30, 100)
LINK = "server: flower-superlink"
RUN = "server: flwr-serverapp"
THIN = "thin: headwise"


def case(sites: int) -> Case:
    """A small client at each site; who is missing is asked again, as the guide advises."""
    retry = 'faults = { on_failure = "retry" }\n'
    return Case(f"synthetic:{40 * sites}:10:20:sites={sites}", "mlp:20", sites, retry)


def line(sites: int, deployment: Deployed, ready: float, busy: float) -> str:
    cpu = " | ".join(f"{deployment.cpu[name]:.1f} s" for name in (LINK, RUN, THIN))
    memory = " | ".join(f"{deployment.memory[name] / 10**6:,.0f} MB" for name in (LINK, RUN))
    lost = sum(len(clients) for row in deployment.run.rounds for clients in row.get("failed", {}).values())
    core = deployment.cpu[LINK] / statistics.mean(deployment.seconds[1:])
    times = f"{ready:.0f} s | {deployment.usual:.1f} s | {cpu} | {100 * core:.0f} %"
    return f"| {sites} | {times} | {memory} | {lost} | {busy:.1f} |"


def measure(many: tuple[int, ...]) -> None:
    """Measure each number of sites; the page has what is known so far."""
    lines: list[str] = []
    for sites in many:
        with tempfile.TemporaryDirectory() as folder:
            before = contention()
            begun = time.perf_counter()
            deployment = deployed(case(sites), Path(folder), rounds=ROUNDS)
            ready = time.perf_counter() - begun - sum(deployment.seconds)
            lines.append(line(sites, deployment, ready, (before + contention()) / 2))
        print(lines[-1], flush=True)
        page = TEXT.format(rounds=ROUNDS, cores=os.cpu_count(), lines="\n".join(lines))
        PAGE.write_text(page, encoding="utf-8")


TEXT = """# A hundred sites

`python benchmarks/hundred.py`: a server with TLS and keys, and thin sites, all on one machine with {cores} cores;
FedPer with a network of 7 KB, one small client per site, {rounds} rounds, the median without the first. A thin site has
the code of a node, a key and a connection of its own, but shares one worker with all others. *Ready* is all that is no
round: starting, registering, connecting, ending. *CPU* is per round: of the SuperLink, of the run's own server, and of
all sites together. *Of a core* is the SuperLink's CPU time over the time of a round; the next two are the memory of the
SuperLink and of the run's server. *Lost* are answers that did not come. *Contention* is wall over CPU time of a busy
loop, 1 on an idle machine: **where it is above 1, other programs ran as well, and the times are too long**.

| sites | ready | a round | SuperLink, CPU | run, CPU | sites, CPU | of a core | SuperLink | run | lost | contention |
|---|---|---|---|---|---|---|---|---|---|---|
{lines}

The SuperLink does most of the work and is the bottleneck: a message and its answer are 16 requests, polling for
messages adds more, and a single Python process, which can use one core, handles them all. Nodes poll less often when
the server is slow, so more sites make rounds longer, not impossible.
"""

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--sites", type=int, action="append", help=f"only this number; repeatable; default: {MANY}")
    measure(tuple(parser.parse_args().sites or MANY))
