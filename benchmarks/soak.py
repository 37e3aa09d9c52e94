"""A bad week in an hour: clients drop out, send NaN and are slow, workers are killed, and the driver is, too.

    python benchmarks/soak.py              # 500 rounds on digits; writes docs/results/reliability.md
    python benchmarks/soak.py --rounds 40  # a short one, which writes nothing

30 % of the clients drop out of each round, 5 % send NaN, 5 % are too slow; a worker is killed every 20 rounds and the
driver every 100. FedPer, 20 clients, Dir(0.3), 2 workers; without faults there are five runs, with other seeds.
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
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import headwise as hw

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from killed_runs import checkpoint  # beside the tests, which use it too

PAGE = Path(__file__).parent.parent / "docs" / "results" / "reliability.md"
FAULTS = ["--faults", "drop=0.3,nan=0.05,slow=0.05", "--set", "faults.deadline=60"]
UNTRAINED = ("no answer", "late", "raised")
"""failures of clients that did not train; one that sent NaN did"""
USUAL = [
    "--method", "fedper", "--data", "digits", "--partition", "dirichlet:0.3", "--clients", "20",
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
    size = 0
    for path in (folder / "checkpoint").glob("*"):
        with suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


def workers_of(driver: int) -> list[int]:
    """The processes that the driver has started to train clients."""
    children = Path(f"/proc/{driver}/task/{driver}/children")
    workers = [int(p) for p in children.read_text().split()] if children.exists() else []
    return [p for p in workers if b"spawn_main" in Path(f"/proc/{p}/cmdline").read_bytes()]


def bad_week(folder: Path, rounds: int, worker_every: int, driver_every: int) -> Week:
    """Run to the end whatever happens."""
    driver = headwise("run", *USUAL, *FAULTS, "--workers", "2", "--rounds", str(rounds), "--out", str(folder))
    workers = drivers = 0
    sizes: dict[int, int] = {}
    while True:
        code = driver.poll()
        done = rounds_of(folder)
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


def count_training(folder: Path) -> dict[int, int]:
    """How often each client has trained, as its state says."""
    progress, checkpoints = checkpoint(folder)
    with closing(checkpoints):
        return {c: progress.states[c].trained for c in progress.states}


def account(run: hw.Run) -> str:
    """Whether each client's state is that of the rounds it trained in."""
    drawn = Counter(c for row in run.rounds for c in row["clients"])
    for row in run.rounds:
        drawn.subtract(c for reason in UNTRAINED for c in row.get("failed", {}).get(reason, []))
    trained_rounds = count_training(run.path)
    return f"{sum(trained_rounds.get(c) == n for c, n in drawn.items())} of {len(drawn)}"


def page(week: Week, good: list[hw.Run]) -> str:
    run = week.run
    rows = week.run.rounds
    tenth = max(1, len(rows) // 10)
    parts = (tenth, len(rows) - tenth)
    memory = [max(r["memory"] for r in rows[low : low + tenth]) / 2**20 for low in parts]
    sizes = [max(size for t, size in week.sizes.items() if low < t <= low + tenth) / 1024 for low in parts]
    lines = [len((run.path / name).read_bytes()) / len(rows) / 1024 for name in ("rounds.jsonl", "clients.jsonl")]
    drawn = sum(len(r["clients"]) for r in rows)
    rows_of_page = [
        ("rounds", f"{len(rows)} of {run.manifest['experiment']['rounds']}, ended: {run.ended}"),
        ("killed", f"{week.workers} workers, {week.drivers} drivers"),
        ("failed", ", ".join(f"{n} x {reason}" for reason, n in run.failed.items())),
        ("replies that counted", f"{drawn - sum(run.failed.values())} of {drawn}"),
        ("clients whose state is that of the rounds they trained in", account(run)),
        ("memory, second and last tenth of the rounds", f"{memory[0]:.0f} MB, {memory[1]:.0f} MB"),
        ("checkpoints on disk, the same", f"{sizes[0]:.0f} KB, {sizes[1]:.0f} KB"),
        ("lines written per round", f"{lines[0]:.1f} KB about rounds, {lines[1]:.1f} KB about clients"),
    ]
    for moment in ("pre", "stale"):
        others = sorted(100 * other.accuracy(moment) for other in good)
        without = f"{others[0]:.1f} to {others[-1]:.1f} %"
        rows_of_page.append((f"accuracy, {moment}", f"{100 * run.accuracy(moment):.1f} %; without faults {without}"))
    about = " ".join((__doc__ or "").split("\n\n")[2].split())
    head = f"# Reliability\n\nMade by `python benchmarks/soak.py`. {about}\n\n| what | found |\n|---|---|\n"
    return head + "".join(f"| {k} | {v} |\n" for k, v in rows_of_page)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=500)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        room = Path(name)
        week = bad_week(room / "bad", rounds, min(20, rounds // 4), min(100, rounds // 3))
        good = [room / f"good-{seed}" for seed in range(5)]
        for seed, folder in enumerate(good):
            settings = [*USUAL, "--seed", str(seed), "--rounds", str(rounds), "--out", str(folder)]
            if headwise("run", *settings).wait():
                raise SystemExit("a run without faults failed")
        text = page(week, [hw.Run(p) for p in good])
    print(text)
    if rounds == 500:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
