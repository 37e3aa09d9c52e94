"""What masked sums cost: `python benchmarks/masked.py` writes docs/results/masked.md.

The sizes and sites of benchmarks/flower.py, plain and masked, at real SuperNodes: seconds of a round, and bytes of all
messages of a site as the server counts them. Then the masks alone, in one process. Run it where only loopback is
reachable: `unshare --net sh -c 'ip link set lo up && exec python benchmarks/masked.py'`.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import numpy as np
from flower import LARGE, MASKED, SITES, SMALL
from loopback import contention, deployed

from headwise.sites.secagg.protocol import deal, masked, needed, new_secrets, read_share

PAGE = Path(__file__).parents[1] / "docs" / "results" / "masked.md"
ROUNDS = 3
CASES = {"3.4 MB, 20 clients": LARGE, "7 KB, 20 clients": SMALL}


def deployments() -> list[str]:
    """A line for each size, plain and masked; the second round counts."""
    lines: list[str] = []
    for what, case in CASES.items():
        for name, more in (("plain", ""), ("masked", MASKED)):
            with tempfile.TemporaryDirectory() as folder:
                before = contention()
                found = deployed(case._replace(more=more), Path(folder), rounds=ROUNDS, sites=SITES)
                last = [row for row in found.run.sites if row["round"] == ROUNDS]
            down, up = (sum(row[way] for row in last) / SITES / 1024 for way in ("bytes_down", "bytes_up"))
            busy = (before + contention()) / 2
            sent = f"{len(last) // SITES} | {down:,.1f} KB | {up:,.1f} KB"
            cpu = sum(found.cpu.values())
            line = f"| {what} | {name} | {sent} | {found.seconds[-1]:.1f} s | {cpu:.1f} s | {busy:.1f} |"
            print(line, flush=True)
            lines.append(line)
    return lines


def alone() -> list[str]:
    """CPU seconds of a site for its keys, its shares and a vector of 850,000 numbers."""
    lines: list[str] = []
    for count in (4, 20, 100):
        secrets = [new_secrets() for _ in range(count)]
        roster, x = [s.member for s in secrets], np.zeros(850_000, np.uint64)
        enough = needed(2 / 3, count)
        begun = time.process_time()
        _, letters = deal(secrets[0], 0, roster, enough)
        dealt = time.process_time()
        for v in range(1, count):
            read_share(secrets[v].cipher, v, 0, roster, letters[v])
        read = time.process_time()
        masked(x, secrets[0], 0, roster, range(count), "benchmark")
        done = time.process_time()
        lines.append(f"| {count} | {dealt - begun:.2f} s | {read - dealt:.2f} s | {done - read:.2f} s |")
        print(lines[-1], flush=True)
    return lines


TEXT = """# Masked sums: what they cost

`python benchmarks/masked.py`, in a network of its own that has only loopback: FedPer at {sites} sites, TLS and keys,
the last of {rounds} rounds. *Messages*, *down* and *up* are of one site, *CPU* of all processes. *Contention* is wall
over CPU time of a busy loop before and after, 1 on an idle machine: **where it is above 1, times are too long, by up to
that factor**. All processes are on one machine with {cores} cores.

| message | sums | messages | down | up | a round | CPU | contention |
|---|---|---|---|---|---|---|---|
{deployments}

A site sends one vector of 8 bytes per number for all of its clients, in place
of one of 4 bytes for each: here it has five, so that masked messages up are smaller.

The masks alone, in CPU seconds of a site with 850,000 numbers:

| sites | deal shares | read the others' | mask |
|---|---|---|---|
{alone}
"""

if __name__ == "__main__":
    found = {"alone": "\n".join(alone()), "deployments": "\n".join(deployments())}
    PAGE.write_text(TEXT.format(sites=SITES, rounds=ROUNDS, cores=os.cpu_count(), **found), encoding="utf-8")
