"""A bad week in an hour: clients drop out, send NaN and are slow, workers are killed, and the driver is, too.

    python benchmarks/soak.py              # 500 rounds on digits, and 200 kills; writes docs/results/reliability.md
    python benchmarks/soak.py --rounds 40  # a short one, which writes nothing

30 % of the clients drop out of each round, 5 % send NaN, 5 % are too slow; a worker is killed every 20 rounds and the
driver every 100. FedPer, 20 clients, Dir(0.3), 2 workers; runs without faults have five seeds, those with faults three.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import kills

import headwise as hw
from headwise.testing.killing import checkpoint

PAGE = Path(__file__).parent.parent / "docs" / "results" / "reliability.md"
FAULTS = ["--faults", "drop=0.3,nan=0.05,slow=0.05", "--set", "faults.deadline=60"]
UNTRAINED = ("no answer", "late", "raised")
"""failures of clients that did not train; one that sent NaN did"""
USUAL = [
    "--method", "fedper", "--data", "digits", "--partition", "dirichlet:0.3", "--clients", "20", "--workers", "2",
    "--quiet", "--set", "evaluate.every=10",
]  # fmt: skip


class Week(NamedTuple):
    """A run with faults, and what was done to it."""

    run: hw.Run
    workers: int
    """that were killed"""
    drivers: int
    sizes: dict[int, int]
    """bytes of checkpoints after each round that was looked at"""


def headwise(*args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "headwise", *args], stdout=subprocess.DEVNULL)


def rounds_of(folder: Path) -> int:
    path = folder / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def size_of(folder: Path) -> int:
    """Files may come and go meanwhile."""
    found = 0
    for path in (folder / "checkpoint").glob("*"):
        if path.exists():
            found += path.stat().st_size
    return found


def workers_of(driver: int) -> list[int]:
    """The processes that the driver has started to train clients."""
    children = Path(f"/proc/{driver}/task/{driver}/children")
    found = [int(p) for p in children.read_text().split()] if children.exists() else []
    return [p for p in found if b"spawn_main" in Path(f"/proc/{p}/cmdline").read_bytes()]


def bad_week(folder: Path, seed: int, rounds: int, worker_every: int, driver_every: int) -> Week:
    """Run to the end whatever happens."""
    driver = headwise("run", *USUAL, *FAULTS, "--seed", str(seed), "--rounds", str(rounds), "--out", str(folder))
    workers = drivers = 0
    sizes: dict[int, int] = {}
    while True:
        code, done = driver.poll(), rounds_of(folder)
        if code == 0:
            return Week(hw.Run(folder), workers, drivers, sizes)
        if code is not None:
            raise SystemExit(f"the driver ended with {code}")
        sizes[done] = size_of(folder)
        if done // driver_every > drivers and done < rounds:
            driver.kill()
            if driver.wait() == -signal.SIGKILL:
                drivers += 1
                driver = headwise("resume", str(folder), "--quiet")
        elif done // worker_every > workers and (victims := workers_of(driver.pid)):
            os.kill(victims[0], signal.SIGKILL)
            workers += 1
        time.sleep(0.05)


def trained(folder: Path) -> dict[int, int]:
    """How often each client has trained, as its state says."""
    found, checkpoints = checkpoint(folder)
    with closing(checkpoints):
        return {c: found.states[c].trained for c in found.states}


def accounted(run: hw.Run) -> str:
    """Whether each client's state is that of the rounds it trained in."""
    wanted = Counter(c for row in run.rounds for c in row["clients"])
    for row in run.rounds:
        wanted.subtract(c for reason in UNTRAINED for c in row.get("failed", {}).get(reason, []))
    found = trained(run.path)
    return f"{sum(found.get(c) == n for c, n in wanted.items())} of {len(wanted)}"


def spread(values: list[float]) -> str:
    return f"{100 * min(values):.1f} to {100 * max(values):.1f} %"


def told(weeks: list[Week], good: list[hw.Run]) -> list[tuple[str, str]]:
    """What was found, as lines of a table."""
    first = weeks[0].run
    rows = first.rounds
    tenth = max(1, len(rows) // 10)
    memory = [max(r["memory"] for r in part) / 2**20 for part in (rows[tenth : 2 * tenth], rows[-tenth:])]
    sizes = [
        max(size for t, size in weeks[0].sizes.items() if low < t <= low + tenth) / 1024
        for low in (tenth, len(rows) - tenth)
    ]
    asked = sum(len(r["clients"]) for r in rows)
    lines = [len(p.read_bytes()) / len(rows) for p in (first.path / "rounds.jsonl", first.path / "clients.jsonl")]
    return [
        ("rounds", ", ".join(f"{len(w.run.rounds)} ({w.run.ended})" for w in weeks)),
        ("killed", ", ".join(f"{w.workers} workers and {w.drivers} drivers" for w in weeks)),
        ("failures, first seed", ", ".join(f"{n} x {reason}" for reason, n in first.failed.items())),
        ("replies that counted, first seed", f"{asked - sum(first.failed.values())} of {asked}"),
        ("clients whose state is that of the rounds they trained in", ", ".join(accounted(w.run) for w in weeks)),
        ("memory, second and last tenth of the rounds", f"{memory[0]:.0f} MB, {memory[1]:.0f} MB"),
        ("checkpoints on disk, the same", f"{sizes[0]:.0f} KB, {sizes[1]:.0f} KB"),
        ("lines written per round", f"{lines[0] / 1024:.1f} KB of rounds, {lines[1] / 1024:.1f} KB of clients"),
        *(
            (f"accuracy, {m}", f"{spread([w.run.accuracy(m) for w in weeks])}; without faults "
             f"{spread([run.accuracy(m) for run in good])}")
            for m in ("pre", "stale")
        ),
    ]  # fmt: skip


def page(weeks: list[Week], good: list[hw.Run], killed: list[kills.Kill]) -> str:
    def section(title: str, doc: str | None, lines: list[tuple[str, str]]) -> str:
        said = " ".join((doc or "").split("\n\n")[2].split())
        rows = "".join(f"| {k} | {v} |\n" for k, v in lines)
        return f"## {title}\n\n{said}\n\n| what | found |\n|---|---|\n{rows}"

    parts = [
        "# Reliability\n\nMade by `python benchmarks/soak.py`.\n",
        section("A bad week", __doc__, told(weeks, good)),
        section("Killed at any time", kills.__doc__, kills.told(killed)),
    ]
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=500)
    rounds = parser.parse_args().rounds
    full = rounds == 500
    with tempfile.TemporaryDirectory() as name:
        room = Path(name)
        weeks = [
            bad_week(room / f"bad-{seed}", seed, rounds, min(20, rounds // 4), min(100, rounds // 3))
            for seed in range(3 if full else 1)
        ]
        good = [room / f"good-{seed}" for seed in range(5 if full else 1)]
        for seed, folder in enumerate(good):
            if headwise("run", *USUAL, "--seed", str(seed), "--rounds", str(rounds), "--out", str(folder)).wait():
                raise SystemExit("the run without faults failed")
        found = page(weeks, [hw.Run(p) for p in good], list(kills.killed(200 if full else 5, room / "kills")))
    print(found)
    if full:
        PAGE.write_text(found, encoding="utf-8")


if __name__ == "__main__":
    main()
