"""A bad week in an hour: clients drop out, send NaN and are slow, workers are killed, and the driver is, too.

    python benchmarks/soak.py              # 500 rounds on digits; writes docs/results/reliability.md
    python benchmarks/soak.py --rounds 40  # a short one, which writes nothing

30 % of the clients drop out of each round, 5 % send NaN, 5 % are too slow; a worker is killed every 20 rounds and the
driver every 100.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import headwise as hw

PAGE = Path(__file__).parent.parent / "docs" / "results" / "reliability.md"
FAULTS = "drop=0.3,nan=0.05,slow=0.05"
USUAL = [
    "--method", "fedper", "--data", "digits", "--partition", "dirichlet:0.3", "--clients", "20", "--workers", "2",
    "--quiet", "--set", "evaluate.every=10",
]  # fmt: skip


def headwise(*args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "headwise", *args], stdout=subprocess.DEVNULL)


def rounds_of(folder: Path) -> int:
    path = folder / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def workers_of(driver: int) -> list[int]:
    """The processes that the driver has started to train clients."""
    children = Path(f"/proc/{driver}/task/{driver}/children")
    found = [int(p) for p in children.read_text().split()] if children.exists() else []
    return [p for p in found if b"spawn_main" in Path(f"/proc/{p}/cmdline").read_bytes()]


def bad_week(folder: Path, rounds: int, worker_every: int, driver_every: int) -> tuple[int, int]:
    """Run to the end whatever happens; return how many workers and drivers were killed."""
    faults = ["--faults", FAULTS, "--set", "faults.deadline=60", "--rounds", str(rounds), "--out", str(folder)]
    driver, workers, drivers = headwise("run", *USUAL, *faults), 0, 0
    while True:
        code = driver.poll()
        if code == 0:
            return workers, drivers
        if code is not None and code != -signal.SIGKILL:
            raise SystemExit(f"the driver ended with {code}")
        done = rounds_of(folder)
        if code is None and done // driver_every > drivers:
            driver.kill()
            driver.wait()
            drivers += 1
        elif code is None and done // worker_every > workers and (victims := workers_of(driver.pid)):
            os.kill(victims[0], signal.SIGKILL)
            workers += 1
        if driver.poll() is not None and driver.returncode != 0:
            driver = headwise("resume", str(folder), "--quiet")
        time.sleep(0.05)


def size_of(folder: Path) -> int:
    return sum(p.stat().st_size for p in (folder / "checkpoint").iterdir())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=500)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as room:
        bad, good = Path(room) / "bad", Path(room) / "good"
        workers, drivers = bad_week(bad, rounds, min(20, rounds // 4), min(100, rounds // 3))
        if headwise("run", *USUAL, "--rounds", str(rounds), "--out", str(good)).wait():
            raise SystemExit("the run without faults failed")
        report = told(hw.Run(bad), hw.Run(good), workers, drivers)
    print(report)
    if rounds == 500:
        PAGE.write_text(report, encoding="utf-8")


def told(bad: hw.Run, good: hw.Run, workers: int, drivers: int) -> str:
    """The page."""
    rows, missed = bad.rounds, dict.fromkeys(range(20), 0)
    for row in rows:
        for client in {c for who in row.get("failed", {}).values() for c in who}:
            missed[client] += 1
    tenth = max(1, len(rows) // 10)
    memory = [max(r["memory"] for r in part) / 2**20 for part in (rows[tenth : 2 * tenth], rows[-tenth:])]
    heard = sum(len(r["clients"]) for r in rows) - sum(missed.values())
    lines = [
        ("rounds", f"{len(rows)} of {bad.manifest['experiment']['rounds']}, ended: {bad.ended}"),
        ("killed", f"{workers} workers, {drivers} drivers"),
        ("failed", ", ".join(f"{n} x {reason}" for reason, n in bad.failed.items())),
        ("replies that counted", f"{heard} of {sum(len(r['clients']) for r in rows)}"),
        ("rounds a client missed", f"from {min(missed.values())} to {max(missed.values())}"),
        ("memory, second and last tenth", f"{memory[0]:.0f} MB, {memory[1]:.0f} MB"),
        ("checkpoint", f"{size_of(bad.path) / 1024:.0f} KB, without faults {size_of(good.path) / 1024:.0f} KB"),
        *(
            (f"accuracy, {m}", f"{bad.accuracy(m):.4f}, without faults {good.accuracy(m):.4f}")
            for m in ("pre", "stale")
        ),
    ]
    head = "# Reliability\n\nMade by `python benchmarks/soak.py`: " + " ".join((__doc__ or "").split("\n\n")[2].split())
    return head + "\n\n| what | found |\n|---|---|\n" + "".join(f"| {k} | {v} |\n" for k, v in lines)


if __name__ == "__main__":
    main()
